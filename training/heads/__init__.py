"""Heads on a model's last hidden state that predict later tokens, for any model.

Imports `training.adapter` and the floors below.
"""
