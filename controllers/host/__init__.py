"""Memory of the host behind the device: page allocators, backups, load backs, and the controller that moves them."""

if __name__ != "unified_tree.controllers.host":  # a second name would make every class exist twice
    raise ImportError(f"import this package as unified_tree.controllers.host, not as {__name__}")
