"""What drafts from a model's last hidden state, for any model: heads, or a layer.

Imports `training.adapter` and the floors below.
"""
