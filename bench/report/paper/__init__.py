"""`bench paper`: figures, table, texts and references of one run or several, for one venue."""
