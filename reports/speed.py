"""The rule for speed: what pairs of processes conclude."""
