"""A simulated server on a virtual clock, which drives a real cache."""
