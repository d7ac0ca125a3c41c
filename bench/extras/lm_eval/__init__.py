"""Measure quality on lm-eval's tasks (`bench eval`)."""
