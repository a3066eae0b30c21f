"""Inserts: the pages that a request has computed become values of the tree."""
