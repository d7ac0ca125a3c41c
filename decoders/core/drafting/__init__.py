"""What decoders share that draft, propose, refine and verify."""
