"""Hypothesis strategies that draw what breaks kernels."""
