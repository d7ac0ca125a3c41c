"""Explanations, answers, costs and sweeps as text."""
