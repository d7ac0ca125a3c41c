"""The machine: its clock, memory, load and facts, and the time limit of an answer.

Imports records and below.
"""
