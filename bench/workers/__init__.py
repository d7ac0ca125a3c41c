"""Spreads a run's blocks over workers, which keep the models open and take one block at a time.

It imports only `bench.measure` and the layers below.
"""
