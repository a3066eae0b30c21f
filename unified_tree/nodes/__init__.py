"""The records of the tree: nodes, values, lines of text, ghosts, receipts and effects, and the orders that they stand in."""
