"""Is a decoder lossless? The evidence and the verdict.

Imports plan and below.
"""
