"""The XAttention family against its contracts, a module a topic of the contracts' ids."""
