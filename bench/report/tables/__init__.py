"""Write a run's numbers as tables (Markdown, HTML, LaTeX, rich) and as sentences."""
