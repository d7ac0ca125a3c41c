"""Drives decoders: merges calls, reads logits out, cuts and counts.

Imports the contract and `adapter.config`; never drafting or testing.
"""
