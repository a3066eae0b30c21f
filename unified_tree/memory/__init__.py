"""The bounded memory of what was evicted, by which misses are explained."""
