"""What connects decoders with other libraries: loops of transformers, adapters in PEFT's format."""
