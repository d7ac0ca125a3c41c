"""`bench index`: a web page for a folder of runs."""
