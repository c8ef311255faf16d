"""Cases, comparison, strategies, and the tests."""
