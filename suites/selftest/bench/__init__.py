"""Tests of the benchmark tier, on a device with a simulated clock."""
