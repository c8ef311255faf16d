"""The specification's mathematics, in the standard library and nothing else."""
