"""The witness family against its contracts, a module a section of the specification."""
