"""The sanitize tier: CUDA C++ on the host, every load and store of it watched, without a GPU.

What a kernel touches is held to its tensors and its shared arrays, and to the order that barriers,
warp barriers and fences make; a race is seen under whatever order its threads take. Results are
judged as everywhere else.
"""
