"""The bounded memory of evictions, which explains misses."""
