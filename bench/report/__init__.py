"""Write tables, figures and texts of finished runs.

The folder imports plan, stats and lower layers, never measure. Only figures/ imports matplotlib.
No module imports torch.
"""
