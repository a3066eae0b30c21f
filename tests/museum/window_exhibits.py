"""Windows: sliding-window layers whose last tokens are gone, though the full KV of the prefix is there."""

from __future__ import annotations

from exhibit import DRAFT, FULL, SWA, WINDOW, Exhibit, Request, Tokens, ask, serve, sglang, text, vllm

from unified_tree import Component, Trailing

REBUILT = Component(name="swa", coverage=Trailing(WINDOW), rebuild_tokens=WINDOW)
"""The window of a single layer, which can be rebuilt."""


def turns(name: str, first: int, more: int, count: int) -> list[Request]:
    """A conversation: each turn has all before it, and 16 tokens are generated at its end."""
    whole = text(name, first + more * (count - 1) + 16)
    return [ask(whole[:end], whole[end : end + 16]) for end in range(first, first + more * count, more)]


def round_robin() -> list[Request]:
    seats = [turns(f"seat {seat}", 320, 48, 3) for seat in range(4)]
    return [seat[turn] for turn in range(3) for seat in seats]


def edited() -> tuple[Tokens, Tokens]:
    first = text("chat", 200)
    return first, first[:188] + text("the edited end", 20)


def parked() -> list[Request]:
    idle = turns("parked in a tool call", 512, 48, 2)
    busy = [turns(f"busy {agent}", 128, 48, 4) for agent in range(2)]
    return [idle[0], *(agent[turn] for turn in range(4) for agent in busy), idle[1]]


def long_and_short() -> list[Request]:
    long, short = turns("long", 128, 128, 6), turns("short", 128, 48, 2)
    return [*long[:3], short[0], *long[3:], short[1]]


def agents(count: int, first: int) -> list[Request]:
    calls = [turns(f"agent {agent}", first, 64, 2) for agent in range(count)]
    return [call[turn] for turn in range(2) for call in calls]


def generations(count: int) -> list[Request]:
    """Long answers, and the next turn behind each."""
    texts = [text(f"generation {index}", 784) for index in range(count)]
    return [*(ask(each[:320], each[320:720]) for each in texts), *(ask(each[:768], each[768:]) for each in texts)]


def tails(prefix: Tokens) -> list[Request]:
    return [ask(prefix + text(f"tail {turn}", 64 * turn + 20), (), 256, 999) for turn in range(5)]


EXHIBITS = (
    Exhibit(
        name="windows-of-round-robin-sessions",
        thread=vllm(48435),
        title="Sessions that take turns lose all windows at a quarter of the pool",
        reported="Gemma-4-31B: no request hits any more once the sessions' texts pass about 34k of 153k tokens; one session "
        "alone hits 99.96 %.",
        components=(FULL, SWA),
        pools={"full": 256, "swa": 32},
        chunk_tokens=64,
        script=serve(*round_robin()),
        ceiling=2880,
        why="Four windows of 64 tokens and a running chunk fit into the window pool; each turn has all of the one before.",
        lesson="The window of a boundary is kept as a unit, and windows are evicted in the order of their use.",
    ),
    Exhibit(
        name="window-ends-behind-the-edit",
        thread=vllm(57610),
        title="A prompt that differs in its last block finds no window",
        reported="Gemma-4: a chat whose last turn is edited misses all of its prompt, for only the window at the old end was "
        "kept.",
        components=(FULL, REBUILT),
        script=serve(*map(ask, edited())),
        ceiling=176,
        why="Both share 188 tokens, and 176 of them are whole pages.",
        lesson="All windows of a prompt are kept as spare ones while there is room. A prompt resumes where it branches off.",
    ),
    Exhibit(
        name="idle-branch-loses-its-tail",
        thread=sglang(35515, "pull"),
        title="A session that waits for a tool loses its last window first",
        reported="One evicted node in the last window makes a whole branch unmatchable: from tens of thousands of tokens to 0.",
        components=(FULL, SWA),
        pools={"full": 256, "swa": 24},
        chunk_tokens=64,
        script=serve(*parked()),
        ceiling=1680,
        why="Three windows and a running chunk fit, so each turn can resume at the end of the one before.",
        lesson="By least recent use the parked session goes first here, too: the ledger names the window pool. With 34 "
        "pages instead of 24 nothing is lost.",
        lost={"evicted": 528},
        gap=528,
    ),
    Exhibit(
        name="whole-path-refreshed",
        thread=sglang(26615, "pull"),
        title="A hit refreshes windows that no prompt can use any more",
        reported="Every ancestor's window became the most recent at each match, so that the pool filled with windows out of "
        "reach.",
        components=(FULL, SWA),
        pools={"full": 256, "swa": 32},
        chunk_tokens=64,
        script=serve(*long_and_short()),
        ceiling=2144,
        why="The windows at the ends of both sessions fit beside a running chunk.",
        lesson="A match refreshes the one window that it uses.",
    ),
    Exhibit(
        name="small-window-pool",
        thread=sglang(26907, "pull"),
        title="Evicting a node takes its last window along",
        reported="DeepSeek-V4 with a window pool of 1.5 %: 8.18 % hit, and 94.49 % once evictions leave windows at intervals.",
        components=(FULL, SWA),
        pools={"full": 320, "swa": 24},
        chunk_tokens=128,
        script=serve(*agents(3, 1024)),
        ceiling=3120,
        why="Three windows are 12 pages, and a running chunk with its window takes 12 more.",
        lesson="A prompt that ends with a page keeps one page more than its window, for its repeat. So the session unused for "
        "longest loses its window here. With 26 pages instead of 24 nothing is lost.",
        lost={"evicted": 1040},
        gap=1040,
    ),
    Exhibit(
        name="long-sessions-are-tombstones",
        thread=sglang(35129),
        title="Long sessions hit nothing, short ones nearly all",
        reported="DeepSeek-V4 with a draft and a host tier: 0 cached tokens each turn of a 110k-token session; short prompts "
        "hit 98 %.",
        components=(FULL, SWA, DRAFT),
        pools={"full": 256, "swa": 32},
        host={"full": 512, "swa": 64, "draft": 512},
        chunk_tokens=128,
        script=serve(*turns("session", 1800, 100, 4)),
        ceiling=5728,
        why="Each turn has all of the one before, output included, and the pools hold it.",
        lesson="Tokens out of the window are not asked for: only the last 64 must be there.",
    ),
    Exhibit(
        name="window-evicted-path-kept",
        thread=sglang(28058, "pull"),
        title="Windows are gone under load, and the full KV is of no use",
        reported="DeepSeek-V4: window pages are often evicted while the full KV stays, and each such prompt is computed anew.",
        components=(FULL, REBUILT),
        pools={"full": 256, "swa": 14},
        chunk_tokens=64,
        script=serve(*agents(4, 512)),
        ceiling=2048,
        why="Four windows do not fit beside a running one; a window that is gone costs the 64 tokens that rebuild it.",
        lesson="A missing window is rebuilt from the cached KV if that computes less; a rebuild begins at a page, up to 15 "
        "tokens early.",
        lost={"evicted": 320},
        gap=256,
    ),
    Exhibit(
        name="windows-of-long-generations",
        thread=sglang(17220, "pull"),
        title="A long answer keeps the windows of all its tokens",
        reported="Tokens out of the window are not given back while a request decodes, so long generations use up the pool of "
        "windows.",
        components=(FULL, SWA),
        pools={"full": 256, "swa": 24},
        script=serve(*generations(3)),
        ceiling=2160,
        why="Three windows are 12 pages, and a running chunk with its window fits beside them; all 720 tokens of each first "
        "turn are whole pages.",
        lesson="`advance` gives the pages back that neither the next token nor a save needs. A prompt that ends with a page "
        "keeps one page more than its window, for its repeat: with 25 pages instead of 24 nothing is lost.",
        chunk_tokens=128,
        lost={"evicted": 1440},
        gap=1440,
    ),
    Exhibit(
        name="volatile-tails",
        thread=vllm(42948),
        title="A prefix that never changes hits less the longer the rest is",
        reported="DeepSeek-V4-Flash: with tails of 0, 7k, 14k and 28k tokens behind the same 12k, 81, 39, 25 and 16 % are "
        "cached.",
        components=(FULL, SWA),
        pools={"full": 256, "swa": 32},
        chunk_tokens=64,
        script=serve(*tails(text("system prompt", 256))),
        ceiling=1024,
        why="The prefix is 256 tokens and comes five times.",
        lesson="The scheduler names the end of its system prompt as a checkpoint, so that a window is kept there.",
    ),
)
