"""One decoder per file; `decoders.core` is what they share. See docs/adding-a-decoder.md."""
