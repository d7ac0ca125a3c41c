"""Measure the cost of a call by its shape, and explain a run's time."""
