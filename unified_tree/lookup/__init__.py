"""Matching keys: walks, boundaries, and what a use touches."""
