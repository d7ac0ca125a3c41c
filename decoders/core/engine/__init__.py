"""Drive decoders: merge their calls, turn logits into results, cut and count answers."""
