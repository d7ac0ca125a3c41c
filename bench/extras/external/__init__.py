"""Other engines on a run's prompts, with their own loops and counters and guarded imports."""
