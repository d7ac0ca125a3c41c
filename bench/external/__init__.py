"""Other engines on a run's prompts, import-guarded: their own loops, their own counters."""
