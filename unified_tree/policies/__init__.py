"""Eviction policies: the protocol, the standard ones, and the table of their names.

The table alone imports the learned order, `density`.
"""
