"""How a call to an implementation is watched: the memory it gets, the kernels it launches."""
