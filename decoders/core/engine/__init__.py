"""Drives decoders: merges calls, reads logits out, cuts and counts."""
