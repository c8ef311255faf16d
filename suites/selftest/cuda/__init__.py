"""CUDA C++ on the host: each primitive against its definition, each mistake against its message.

The kernels here are plain CUDA. What they should give is worked out from CUDA's own definitions;
the order in which threads get their turn must not matter to any of it.
"""
