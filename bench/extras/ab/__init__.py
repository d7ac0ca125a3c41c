"""Two commits measured interleaved, the CI gate, and how fit a machine is for that."""
