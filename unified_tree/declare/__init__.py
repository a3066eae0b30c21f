"""A user's declarations: components, coverages, page formats, budgets, settings and keys. All other rooms build on these."""
