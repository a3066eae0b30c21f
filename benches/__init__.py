"""Benchmarks: this library's operations, beside rivals' where they are installed. Run `python -m benches --help`.

One scenario is one question. The same scenario code drives every contestant through a small adapter, in a process of the
contestant's own interpreter, and the contestants take turns round by round, so that a machine's noise hits them alike.
"""
