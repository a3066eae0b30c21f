"""The default order: hit density, learned from the turns of sessions. docs/density.md is its page."""
