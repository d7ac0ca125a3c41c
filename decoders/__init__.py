"""Collect the decoders, one per file, which share the parts in `decoders.core`.

A decoder imports `decoders.core` and torch, but no other decoder.
"""
