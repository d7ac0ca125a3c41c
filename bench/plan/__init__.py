"""What is measured: decoders, models, prompts and their order.

Imports stats, machine and below.
"""
