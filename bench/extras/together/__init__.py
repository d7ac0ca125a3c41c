"""Report several runs together: check which may be combined, and make the page."""
