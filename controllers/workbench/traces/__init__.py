"""Traces of requests: readers of their formats, and synthetic ones."""
