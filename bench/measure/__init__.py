"""The three passes over a plan: timing, phases, quality.

Imports plan and below.
"""
