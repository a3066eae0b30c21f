"""Copies between device and host that were asked for and have not ended."""
