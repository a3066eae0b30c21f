"""Tiers: what was copied to host does not come back, or was never copied."""

from __future__ import annotations

from exhibit import FULL, MAMBA, SWA, Exhibit, Request, Tokens, ask, serve, sglang, text, vllm

from unified_tree import Component, Trailing

HYBRID = (FULL, MAMBA)
WIDE = Component(name="wide", coverage=Trailing(128))


def noise(count: int, tokens: int, name: str = "noise") -> list[Request]:
    """Prompts that share nothing, and push all else from the device."""
    return [ask(text(f"{name} {number}", tokens)) for number in range(count)]


def returning(prompt: Tokens, count: int, tokens: int) -> list[Request]:
    """A prompt that comes again after noise."""
    return [ask(prompt), *noise(count, tokens), ask(prompt)]


def replays() -> list[Request]:
    prompts = [text(f"prompt {number}", 528) for number in range(8)]
    return [*map(ask, prompts), *map(ask, prompts[:4])]


def decoded() -> list[Request]:
    prompt = text("prompt", 300)
    answer = text("answer", 200)
    return [ask(prompt, answer), *noise(4, 700), ask(prompt + answer + text("next", 30))]


def branches() -> list[Request]:
    shared = text("shared", 512)
    tails = [f"tail {number}" for number in range(3)]
    return [request for tail in tails for request in (ask(shared + text(tail, 300)), *noise(3, 700, f"noise behind {tail}"))]


EXHIBITS = (
    Exhibit(
        name="state-pruned-on-eviction",
        thread=sglang(33713),
        title="Evicted states are dropped though the host has them",
        reported="Qwen3.8-27B: a prompt's 32,700 tokens and 16 states are copied to host, and cannot be loaded back once the "
        "device has evicted its states.",
        components=HYBRID,
        pools={"full": 160, "mamba": 4},
        host={"full": 2048, "mamba": 32},
        script=serve(*returning(text("sentinel", 2046), 4, 2000)),
        ceiling=1984,
        why="Both pools of the host hold all of it (a sixteenth of the report's length): 1,984 tokens with their state.",
        lesson="Device and host values are tracked one by one, so a node without its device state keeps the host's.",
    ),
    Exhibit(
        name="too-few-states-on-host",
        thread=sglang(39436, "pull"),
        title="The host has room for KV, and none for the states that it needs",
        reported="GLM-5.3-Flash: 565 states for 200 prompts of three checkpoints each, the KV pool 35 % empty: 0 of 8 "
        "replays hit.",
        components=HYBRID,
        pools={"full": 40, "mamba": 4},
        host={"full": 512, "mamba": 8},
        script=serve(*replays()),
        ceiling=2048,
        why="Eight prompts need eight states, and the host has room for eight.",
        lesson="One state for each prompt is copied, the one that it can be resumed from, and not one for each chunk.",
    ),
    Exhibit(
        name="chunk-and-a-bit",
        thread=sglang(30850, "pull"),
        title="A prompt a little longer than its chunks is never copied",
        reported="Prompts of k x 8,192 + 1 to + 255 tokens are never backed up: with 8,193 tokens nothing, with 8,449 all.",
        components=HYBRID,
        pools={"full": 64, "mamba": 4},
        host={"full": 512, "mamba": 16},
        chunk_tokens=256,
        script=serve(*returning(text("prompt", 520), 3, 700)),
        ceiling=512,
        why="512 tokens with their state are on host.",
        lesson="What is copied is a boundary, wherever the chunks ended.",
    ),
    Exhibit(
        name="chunked-never-copied",
        thread=sglang(36647, "pull"),
        title="A prefill in chunks is not copied to host at all",
        reported="Host pools stay empty for long prompts: a prefix of 66k tokens takes 66 s when it returns.",
        components=(FULL,),
        pools={"full": 80},
        host={"full": 512},
        chunk_tokens=128,
        script=serve(*returning(text("session", 1030), 3, 1000)),
        ceiling=1024,
        why="64 whole pages are on host.",
        lesson="Each commit copies what it publishes.",
    ),
    Exhibit(
        name="split-at-the-window",
        thread=sglang(25065, "pull"),
        title="A leaf that is cut where its window begins is not copied",
        reported="Write-through: the upper half has no host copy yet, so the lower half's is skipped, and both are deleted "
        "later.",
        components=(FULL, SWA),
        pools={"full": 60, "swa": 16},
        host={"full": 512, "swa": 64},
        chunk_tokens=64,
        script=serve(*decoded()),
        ceiling=496,
        why="500 tokens with their last window are on host: 31 pages.",
        lesson="A boundary's whole path is copied with its window.",
    ),
    Exhibit(
        name="window-lost-in-write-back",
        thread=sglang(29204, "pull"),
        title="A window becomes a tombstone before it is copied",
        reported="Write-back: windows of inner nodes are dropped from the device without a copy, and the hit rate falls.",
        components=(FULL, SWA),
        pools={"full": 60, "swa": 16},
        host={"full": 512, "swa": 64},
        chunk_tokens=64,
        write_back=True,
        script=serve(*returning(text("session", 500), 4, 700)),
        ceiling=496,
        why="31 pages and the last window of them are on host.",
        lesson="A cold value is copied ahead of its eviction.",
    ),
    Exhibit(
        name="host-divided-by-groups",
        thread=vllm(56871),
        title="Each kind takes a slot for all kinds on host",
        reported="DeepSeek-V4.1 with 8 groups and 500 GiB of host memory: 280 GB are written in a night, and nothing is ever "
        "loaded.",
        components=(FULL, SWA, WIDE),
        pools={"full": 64, "swa": 16, "wide": 20},
        host={"full": 256, "swa": 32, "wide": 48},
        chunk_tokens=64,
        script=serve(*returning(text("session", 810), 3, 890)),
        ceiling=800,
        why="All four texts fit into the host pools: 219 pages, four windows of each kind.",
        lesson="Each kind has a host pool of its own, in pages of its own size.",
    ),
    Exhibit(
        name="branch-of-what-is-on-host",
        thread=sglang(31181, "pull"),
        title="No state is saved at a branch that lies on host",
        reported="The branch point was looked for in the KV on device alone, so prompts that share a prefix on host all miss.",
        components=HYBRID,
        pools={"full": 64, "mamba": 4},
        host={"full": 1024, "mamba": 32},
        script=serve(*branches()),
        ceiling=1024,
        why="Two prompts find 512 tokens that a cache which knew of them would have saved with a state.",
        lesson="Branch points are found over both tiers: the second prompt saves the state that the third resumes from.",
        lost={"never_saved": 512},
        gap=512,
    ),
)
