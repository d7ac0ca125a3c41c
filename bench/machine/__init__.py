"""Read the machine's clock, memory, energy, load and facts, and limit the time of an answer.

The folder imports records and the layers below.
"""
