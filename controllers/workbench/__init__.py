"""Trace replay: what a hybrid cache configuration would do for real traffic, on a virtual clock and without tensors. Start with
the command `unified-tree replay --help`.
"""

if __name__ != "unified_tree.controllers.workbench":  # a second name would make every class exist twice
    raise ImportError(f"import this package as unified_tree.controllers.workbench, not as {__name__}")
