"""One decoder a file; `decoders.core` holds what they stand on.

A decoder imports `decoders.core` and torch, no other decoder.
"""
