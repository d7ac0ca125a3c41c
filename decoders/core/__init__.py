"""The contract of decoders (these files keep their paths), and what stands behind it."""
