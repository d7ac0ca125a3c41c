"""Numbers of a run as tables, printed as Markdown, HTML, LaTeX and rich, and as sentences."""
