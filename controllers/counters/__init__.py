"""What a cache counts: counters, latencies, and the watcher that is told. A leaf: it imports no other room."""
