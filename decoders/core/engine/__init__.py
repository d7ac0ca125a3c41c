"""Drives decoders: merges their calls, turns logits into results, cuts and counts answers."""
