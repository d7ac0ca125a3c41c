"""Measure several sessions of one job, and pool them."""
