"""Tables, figures and texts of finished runs.

Imports plan, stats and lower layers, never measure. Only figures/ imports matplotlib; nothing
imports torch.
"""
