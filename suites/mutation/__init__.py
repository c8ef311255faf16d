"""The mutation tier: kernels of ours made wrong on purpose, by rule, and what the suite says.

A mutant is one edit of the text of a kernel. The file on disk stays as it is: a process that has
collected the tests forks once a mutant, and only there the kernel's text is another.
"""
