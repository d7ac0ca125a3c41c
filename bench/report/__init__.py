"""Tables, figures and texts of finished runs.

Imports plan, stats and below, never measure. Matplotlib in the two files of figures alone. No
torch.
"""
