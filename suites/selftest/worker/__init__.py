"""Tests of implementations in processes of their own: the ones they serve, the ones that sin."""
