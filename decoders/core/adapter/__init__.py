"""Gated adapters with slots, which make a model its own parallel predictor."""
