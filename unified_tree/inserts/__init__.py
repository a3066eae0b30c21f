"""Inserts: what becomes of the pages that a request has computed."""
