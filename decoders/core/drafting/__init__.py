"""Provide the parts of decoders that draft, propose, refine and verify."""
