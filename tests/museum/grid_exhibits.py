"""Grids: pages and blocks of several kinds, whose least common multiple decides what can hit."""

from __future__ import annotations

from exhibit import FULL, MAMBA, Exhibit, Request, Thread, Tokens, ask, serve, text, vllm

from unified_tree import Component, Path, Trailing

ASCEND = "vllm-project/vllm-ascend"
DEEPSEEK_PAGE = 128
"""What compression by 128 needs at least."""
DEEPSEEK = (
    Component(name="c4", coverage=Path(), tokens_per_slot=4),
    Component(name="c128", coverage=Path(), tokens_per_slot=128),
    Component(name="swa", coverage=Trailing(128), rebuild_tokens=256),
)
"""DeepSeek-V4: KV compressed by 4 and by 128, and windows, here of two layers."""
HYBRID = (FULL, MAMBA)


def shared(prefix: Tokens, tail: int, count: int, *checkpoints: int) -> list[Request]:
    """Prompts that begin alike."""
    return [ask(prefix + text(f"question {number}", tail), (), *checkpoints) for number in range(count)]


def again(prompt: Tokens, count: int) -> list[Request]:
    """The same prompt again and again."""
    return [ask(prompt) for _ in range(count)]


def branching() -> tuple[Request, Request]:
    first = text("long document", 4033)
    return ask(first), ask(first[:2017] + text("another end", 2016))


def chat() -> list[Request]:
    whole = text("chat", 1500)
    return [ask(whole[:700], whole[700:760]), ask(whole[:900], whole[900:1010]), ask(whole[:1300])]


EXHIBITS = (
    Exhibit(
        name="prefix-shorter-than-a-block",
        thread=vllm(51198),
        title="Prefix caching that never hits is accepted without a word",
        reported="Qwen3.6-35B-A3B: of 561 tokens sent again with a short suffix none hits, 0 of 1,131 queried.",
        components=HYBRID,
        block_tokens=1056,
        script=serve(ask(text("A", 561)), ask(text("A", 561) + text("suffix", 9))),
        ceiling=512,
        why="The second prompt has all 561 tokens, and a state can be saved at 512.",
        lesson="A page of full KV is 16 tokens whatever the size of a state: a state has a pool of its own.",
    ),
    Exhibit(
        name="no-minimum-named",
        thread=vllm(53749),
        title="A shared prefix of less than a block, and nothing that says so",
        reported="With blocks of 2,096 and 1,920 tokens no shorter shared prefix hits, and no log or metric names the minimum.",
        components=HYBRID,
        block_tokens=2096,
        script=serve(*shared(text("system prompt", 1900), 100, 3, 1900, 2000)),
        ceiling=3712,
        why="Two prompts find a prefix of 1,900 tokens, of which 1,856 lie on the grid of states.",
        lesson="The least length that can hit is the grid of states, 64 tokens; what lies behind it is booked as `save_grid`.",
    ),
    Exhibit(
        name="block-longer-than-any-prompt",
        thread=vllm(48401),
        title="No prompt can fill a block",
        reported="Nemotron: blocks of 8,320 tokens and prompts of at most 4,096: 0 of 10,608 hit; with longer prompts 43 % do.",
        components=HYBRID,
        block_tokens=8320,
        script=serve(*again(text("prompt", 2652), 4)),
        ceiling=7872,
        why="Three of four equal prompts find all but the last page and the rest of the grid.",
        lesson="Prompts of 2,652 tokens hit 2,624.",
    ),
    Exhibit(
        name="below-528-tokens",
        thread=vllm(40696),
        title="Short prompts never hit on a hybrid model",
        reported="Qwen3.5-4B: blocks of 528 tokens, so prompts with 480 tokens in common hit nothing; 16 would do for "
        "attention.",
        components=HYBRID,
        block_tokens=528,
        script=serve(*shared(text("instructions", 480), 24, 4)),
        ceiling=1344,
        why="Three prompts find 480 tokens, of which 448 lie on the grid of states.",
        lesson="Nobody named the end of the instructions: the second prompt shows where texts branch, and the state is "
        "saved there.",
    ),
    Exhibit(
        name="turns-on-no-multiple-of-1024",
        thread=vllm(45702),
        title="Turns that end between two blocks",
        reported="Full attention could hit every 16 tokens, but has to hit where states do, every 1,024.",
        components=HYBRID,
        block_tokens=1024,
        script=serve(*chat()),
        ceiling=1664,
        why="Each turn has the whole one before, with its output, up to the grid of states.",
        lesson="States of the output are saved on the grid as it is generated, the last one kept.",
    ),
    Exhibit(
        name="least-common-multiple",
        thread=Thread(repository=ASCEND, number=16270, kind="issues"),
        title="A block of 2 tokens makes the multiple 4,096",
        reported="DeepSeek-V4: blocks of 128, 4,096, 32, 2 and 8 tokens have to agree, so that prompts below 4,096 hit 0 %.",
        components=DEEPSEEK,
        page_size=DEEPSEEK_PAGE,
        script=serve(*again(text("prompt", 2040), 3)),
        ceiling=3840,
        why="A page of 128 tokens is enough for compression by 128; of 2,040 tokens 15 whole pages can hit.",
        lesson="All kinds count in the same pages, and a compressed one keeps fewer slots in them.",
    ),
    Exhibit(
        name="half-shared-document",
        thread=Thread(repository=ASCEND, number=9326, kind="issues"),
        title="Half of a long prompt is shared, and none of it hits",
        reported="DeepSeek-V4-Flash: 32,274 of 64,530 tokens are shared and 16,384 expected to hit; 0 do.",
        components=DEEPSEEK,
        page_size=DEEPSEEK_PAGE,
        script=serve(*branching()),
        ceiling=1920,
        why="2,017 tokens are shared (a sixteenth of the report's), 15 whole pages.",
        lesson="The windows in the middle of the first prompt are kept as spare ones while there is room.",
    ),
    Exhibit(
        name="draft-halves-the-hit",
        thread=Thread(repository=ASCEND, number=9247, kind="issues"),
        title="A draft takes one page, and the multiple the rest",
        reported="DeepSeek-V4: a repeated prompt hits 32,768 tokens, and 16,384 with multi-token prediction.",
        components=(*DEEPSEEK, Component(name="draft", coverage=Path(), required=False, shares="c4")),
        page_size=DEEPSEEK_PAGE,
        script=serve(*again(text("prompt", 2100), 2)),
        ceiling=2048,
        why="16 whole pages of 128 tokens.",
        lesson="A draft is optional, and none of its values shortens a hit.",
    ),
)
