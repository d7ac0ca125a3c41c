"""Draw figures of a run, of several runs, of a sweep and of a cost folder."""
