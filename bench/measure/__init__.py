"""Make the three passes over a plan: timing, phases, quality.

The folder imports only `bench.plan` and the layers below.
"""
