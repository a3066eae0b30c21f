"""What a scheduler holds: `PrefixCache`, its leases, and the figures of both."""

if __name__ != "unified_tree.controllers.cache":  # a second name would make every class exist twice
    raise ImportError(f"import this package as unified_tree.controllers.cache, not as {__name__}")
