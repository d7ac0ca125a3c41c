"""What decoders share that draft, propose, refine and verify.

Imports the contract and `adapter.config`.
"""
