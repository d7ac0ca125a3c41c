"""Gated adapters with slots: what makes a model its own parallel predictor."""
