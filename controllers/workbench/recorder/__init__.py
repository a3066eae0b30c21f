"""Recording: traces made of what runs, by a proxy, request logs, KV events, or an observer of a cache."""
