"""The inspector: a read-only page on a running cache, or on a recording of one.

`Inspector.open(cache)` is the one call of an embedder. A cache belongs to one thread, so nobody else may read it, and a thread
of the same process would also hold the interpreter for milliseconds at a time while it works. So the page is served by a
process of its own. The cache's thread tells it what it shows, as frames through a socket:

- Each `PrefixCache.poll` (or `Inspector.step`) does one slice of work and stops after `budget_s`: figures, leases, the walk of
  a prompt, or some hundred nodes of the tree. What it reads goes out at once, so a snapshot takes no memory here.
- The socket never blocks. While the page's process is behind, no slice is read.
- A snapshot of the tree goes by node ids, not from node to node, so a tree that changes meanwhile cannot break it. Each node is
  as it was when its slice was read. A node that came meanwhile may be missing, and one that went may be shown.
- The page's process adds up subtrees and runs of nodes. A page asks for one subtree, and gets what is wide enough to be seen.

A recording is a file of the same frames, which `unified-tree inspect` opens. Nothing here changes a cache. The page listens on
loopback, and elsewhere only with a token.
"""

from unified_tree.controllers.inspector.inspector import Inspector

__all__ = ["Inspector"]
