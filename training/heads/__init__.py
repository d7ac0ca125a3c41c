"""What drafts from a model's last hidden state, for any model: heads, a layer, or an exit.

Imports `training.adapter` and the floors below.
"""
