"""The laws of the tree, each a function that finds violations, and a dump for people."""
