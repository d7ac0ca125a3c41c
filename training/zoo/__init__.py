"""Trains the zoo's target and draft.

Imports text and the shared files of training.
"""
