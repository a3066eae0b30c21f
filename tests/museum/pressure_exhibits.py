"""Pressure: a pool of states that is full of what nobody resumes from."""

from __future__ import annotations

from exhibit import FULL, MAMBA, Exhibit, Request, ask, serve, sglang, text

HYBRID = (FULL, MAMBA)


def forks() -> list[Request]:
    chain = text("chain", 2050)
    forked = [ask(chain[:1024] + text(f"fork {index}", 100)) for index in range(3)]
    return [ask(chain), *(ask(text(f"other {index}", 1000)) for index in range(2)), *forked]


def thinned() -> list[Request]:
    chains = [text(f"chain {index}", 2050) for index in range(3)]
    return [*map(ask, chains), ask(chains[0][:512] + text("fork", 100)), *map(ask, chains)]


def conversations(count: int, turns: int, first: int, more: int) -> list[Request]:
    """Conversations that take turns."""
    texts = [text(f"conversation {index}", first + more * turns) for index in range(count)]
    ends = range(first, first + more * turns, more)
    return [ask(whole[:end], whole[end : end + 20]) for end in ends for whole in texts]


def one_long_and_others() -> list[Request]:
    long, *others = (text(f"session {index}", 1200) for index in range(3))
    opening = [ask(whole[:200]) for whole in others]
    return [*opening, *(ask(long[:end]) for end in range(150, 1200, 150)), *(ask(whole[:330]) for whole in others)]


def nearly_full() -> list[Request]:
    """Four sessions, a newcomer for whose prompt little room is missing, and the sessions that were used last."""
    texts = [text(f"session {index}", 380) for index in range(4)]
    newcomer = ask(text("newcomer", 600), text("its answer", 8))
    return [
        *(ask(each[:300], each[300:320]) for each in texts),
        newcomer,
        *(ask(each[:350], each[350:360]) for each in texts[1:]),
    ]


def thinking(keeps_output: bool) -> list[Request]:
    """Clients send answers back without the thoughts before them."""
    asked = [text(f"question {index}", 240) for index in range(3)]
    first = [Request(prompt=each, output=text("thoughts", 160), keeps_output=keeps_output) for each in asked]
    second = [
        Request(
            prompt=each + text("answer", 30) + text("next", 30), output=text("more thoughts", 160), keeps_output=keeps_output
        )
        for each in asked
    ]
    return [*first, *second]


EXHIBITS = (
    Exhibit(
        name="branch-under-pressure",
        thread=sglang(36935),
        title="A branch falls from a 40k hit to nothing",
        reported="Qwen3.8-27B: once chunks of cached prompts outnumber the states, a prompt that branches off hits 0 instead "
        "of 40k.",
        components=HYBRID,
        pools={"full": 400, "mamba": 8},
        script=serve(*forks()),
        ceiling=3072,
        why="A cache that knew the branch would keep a state at 1,024, and the pool has room for it.",
        lesson="One state a prompt is saved and not one a chunk, so the pool is not flooded; the branch is learnt from the "
        "first fork, and the later ones hit.",
        lost={"never_saved": 1024},
        gap=1024,
    ),
    Exhibit(
        name="chains-thinned",
        thread=sglang(38000, "pull"),
        title="The shallow states of a chain go first",
        reported="Three chains of 32k and a fork at 8k, 48 states: main hits 0, 8,192, 0 and 0; thinned by coverage 8,192, "
        "8,192, 16,384 and 28,672.",
        components=HYBRID,
        pools={"full": 500, "mamba": 6},
        script=serve(*thinned()),
        ceiling=6656,
        why="A state at each chain's end and one at the fork (all a sixteenth of the report's length) fit beside a "
        "running one.",
        lesson="All chains hit to their ends; only the first fork finds no state at a length that nobody had named.",
        lost={"never_saved": 512},
        gap=512,
    ),
    Exhibit(
        name="ancestors-refreshed",
        thread=sglang(31648, "pull"),
        title="A hit refreshes states that no prompt resumes from",
        reported="128 conversations: refreshing only the state that is used brings the hit rate from 0.55 to 0.80.",
        components=HYBRID,
        pools={"mamba": 11},
        script=serve(*conversations(4, 3, 200, 150)),
        ceiling=2048,
        why="Four conversations need a state each, and a turn adds a few beside the one that runs.",
        lesson="A match refreshes the one state that it resumes from.",
    ),
    Exhibit(
        name="one-path-takes-all-states",
        thread=sglang(31230, "pull"),
        title="Checkpoints of one long path use up the pool",
        reported="States along one long shared path exhaust the pool, while the full KV of the others stays and is of no use.",
        components=HYBRID,
        pools={"mamba": 5},
        script=serve(*one_long_and_others()),
        ceiling=3392,
        why="Two states for the others, one for the long path and the running one fit.",
        lesson="The states of the long path are newer than those of the others, and no cap thins them out: the ledger "
        "names the state pool. With 11 states instead of 5 nothing is lost.",
        lost={"evicted": 384},
        gap=384,
    ),
    Exhibit(
        name="more-evicted-than-is-short",
        thread=sglang(32016, "pull"),
        title="All that is asked for is evicted, not what is short",
        reported="Each time memory is short the whole request's need is evicted instead of what is missing, and with each leaf "
        "its state.",
        components=HYBRID,
        pools={"full": 112},
        chunk_tokens=1024,
        script=serve(*nearly_full()),
        ceiling=960,
        why="The newcomer lacks 6 of its 38 pages, and the session that does not come back has 20.",
        lesson="Evicted is what the free list lacks: one session goes, and the other three hit 320 tokens each.",
    ),
    Exhibit(
        name="thoughts-never-sent-back",
        thread=sglang(23315, "pull"),
        title="Thoughts that no client sends back fill the cache",
        reported="Reasoning models: the thoughts of each turn, 1.3 to 1.6 GB, are cached as branches that no later prompt "
        "matches.",
        components=(FULL,),
        pools={"full": 64},
        script=serve(*thinking(keeps_output=False)),
        ceiling=720,
        why="Three prompts of 15 pages fit beside a running one with its thoughts.",
        lesson="The scheduler commits the prompt alone, and the pages of the thoughts are free when the request ends.",
    ),
    Exhibit(
        name="thoughts-of-a-hybrid",
        thread=sglang(24380, "pull"),
        title="Without the thoughts the state does not fit the prompt",
        reported="Cutting the thoughts leaves a state of the whole text beside the KV of the prompt: a crash, or a wrong "
        "state.",
        components=HYBRID,
        pools={"full": 64, "mamba": 6},
        script=serve(*thinking(keeps_output=False)),
        ceiling=576,
        why="Three prompts of 15 pages and their states fit; 192 of 240 tokens lie on the grid of states.",
        lesson="The state of the prompt was saved at its own length, before the thoughts.",
    ),
)
