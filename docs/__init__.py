"""The documentation, and what writes its figures: `python -m docs.<page>`."""
