"""Modules written in C, each with the same in Python beside it."""
