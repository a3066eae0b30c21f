"""Evictions: values leave the tree when a pool is short."""
