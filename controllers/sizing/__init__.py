"""How much memory of which kind a workload needs: hits over sizes, from a model of the cache."""
