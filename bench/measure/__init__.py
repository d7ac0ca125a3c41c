"""The three passes over a plan: timing, phases, quality.

It imports only `bench.plan` and the layers below.
"""
