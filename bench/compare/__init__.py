"""Two runs held against each other: did anything regress?

Imports report, stats and below. No torch.
"""
