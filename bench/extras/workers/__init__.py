"""Spread a run's blocks over workers, which keep the models open and take a block at a time."""
