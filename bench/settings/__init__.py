"""What a run may be told: configuration, bounds, protocols, published figures.

Imports errors and text. No torch.
"""
