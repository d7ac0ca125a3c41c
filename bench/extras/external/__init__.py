"""Run other engines on a run's prompts, with their own loops, counters and guarded imports."""
