"""Check whether a decoder is lossless: the evidence and the verdict."""
