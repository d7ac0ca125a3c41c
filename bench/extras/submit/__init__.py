"""Check runs for ``results/reference``, and store them in compact folders."""
