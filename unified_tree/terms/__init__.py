"""The words that all rooms share: errors, tiers, the ids of nodes and pages, and the results of operations."""
