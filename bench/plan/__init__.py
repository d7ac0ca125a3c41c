"""The plan of a run: decoders, models, prompts and their order."""
