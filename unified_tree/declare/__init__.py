"""What a user declares: components, coverages, page formats, budgets and keys. Everything else builds on these."""
