"""`bench paper`: figures, table and references of one run or several, for one venue."""
