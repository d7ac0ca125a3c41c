"""Compares two runs: did anything regress?"""
