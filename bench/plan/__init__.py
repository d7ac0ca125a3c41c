"""Plan a run: decoders, models, prompts and their order."""
