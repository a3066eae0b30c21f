"""Runs of a plan: one row for each policy or limit that is compared."""
