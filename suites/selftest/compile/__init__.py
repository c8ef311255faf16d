"""Tests of the compile tier: what it reads, what it compares, how it runs."""
