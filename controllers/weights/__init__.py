"""Versions of the weights: which generation of a namespace a page belongs to."""
