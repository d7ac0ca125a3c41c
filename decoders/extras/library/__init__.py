"""Connect to other libraries: loops of transformers, adapters in the format of PEFT."""
