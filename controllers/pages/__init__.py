"""Page ids of the pools of one tier: allocators, and the pages that a tier has left."""
