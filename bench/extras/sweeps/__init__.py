"""Measure a grid of runs (`bench sweep`)."""
