"""Locks on what a boundary needs."""
