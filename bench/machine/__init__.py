"""The machine: clock, memory, energy, load and facts, and the time limit of an answer.

Imports records and below.
"""
