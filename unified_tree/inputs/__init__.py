"""Checks of callers' arguments, and text that is safe to show."""
