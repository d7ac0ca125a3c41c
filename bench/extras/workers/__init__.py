"""Spreads a run's blocks over workers, which keep the models open and take one block at a time."""
