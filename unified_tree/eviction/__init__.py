"""Taking values out of the tree when a pool is short."""
