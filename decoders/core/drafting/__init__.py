"""Parts of decoders that draft, propose, refine and verify."""
