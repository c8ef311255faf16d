"""Pages from the records of runs, and from nothing else."""
