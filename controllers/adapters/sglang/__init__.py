"""SGLang's radix cache, replaced by this library: `--radix-cache-backend unified_tree`.

Installing `unified-tree[sglang]` registers the backend by an entry point; `backend.UnifiedTreeCache` is what SGLang's scheduler
calls. docs/sglang.md shows how to serve a model with it. Only the modules `plugin`, `hooks`, `backend` and `kv_events` import
SGLang.

- `plugin`: registers the backend, and refuses what was not tested.
- `backend`: SGLang's interface over a `UnifiedTree`.
- `request_rows`: the slots and the recurrent states of running requests, and how a checkpoint puts them into the tree.
- `request_keys`: keys of the tree for requests.
- `request_misses`: why prompts had to be computed.
- `request_sessions`: the sessions of requests, and what their hints say of them.
- `answers`: what SGLang asks of sessions, of the store, and of any cache.
- `observation`: counters, the log, the inspector's page; `metrics` writes the figures among SGLang's.
- `device_pools`: SGLang's slot allocators as pools of the tree's pages.
- `page_names`: the tree's names for these pages on a GPU.
- `device_tier`: the same pools as free lists, and eviction when one is short.
- `assembly`: puts the host tier together; `tiers`, with `engine_tensors`: host memory and a store behind the pools.
- `waiting_order`: the order of waiting requests under `--schedule-policy dfs-weight`.
- `kv_events`: the events that a router reads.
- `kept_store`: the store, over flushes and changes of the weights, of which `hooks` tells.
- `settings`: the configuration.
- `refusals`: what the backend does not support.
- `model_check`: `unified-tree sglang-check`, which says it of a model before it is served.
"""
