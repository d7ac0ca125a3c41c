"""Several runs in one report: which may be combined, and the page that shows them."""
