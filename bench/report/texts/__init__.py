"""Explanations, projections, answers, costs and sweeps as text."""
