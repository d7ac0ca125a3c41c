"""Is a decoder lossless? The evidence and the verdict."""
