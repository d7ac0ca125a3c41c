"""Write figures, table and references of one or several runs for one venue (`bench paper`)."""
