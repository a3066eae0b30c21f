"""The best that any cache could have hit: exact for paths, bounded for hybrids."""
