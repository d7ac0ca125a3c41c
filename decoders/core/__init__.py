"""The contract of decoders, and folders with what stands behind it.

The files here are public and keep their paths: types, model, decoder, sampling, masks, registry,
checks.
"""
