"""The command `unified-tree`."""
