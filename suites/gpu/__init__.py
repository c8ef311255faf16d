"""What only a device can show: `python -m pytest -m gpu`, on a machine that has one."""
