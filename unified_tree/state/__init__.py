"""The state of one tree: its nodes, pools and eviction orders, and what can be resumed from."""
