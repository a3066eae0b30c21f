"""Tiny models of real families, and the engine that compares what they say with the cache and without it."""
