"""Trace replay: what a hybrid cache configuration would do for real traffic, on a virtual clock and without tensors. Start with
the command `unified-tree replay --help`.
"""
