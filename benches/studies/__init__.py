"""Studies: benches for one table of the documentation each, which are not part of `make bench`."""
