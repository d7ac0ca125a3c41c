"""Models of the transformers library: loading, KV cache, attention masks.

The one folder of the core that imports transformers. Imports the contract and adapter; never
drafting or testing.
"""
