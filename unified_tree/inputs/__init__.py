"""Checks of what callers give, and text that is safe to show."""
