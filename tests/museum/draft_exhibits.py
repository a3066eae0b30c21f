"""Drafts: a model that only guesses ahead takes the hits of the one that it serves."""

from __future__ import annotations

from exhibit import DRAFT, FULL, MAMBA, SWA, Exhibit, Request, Tokens, ask, serve, text, vllm

from unified_tree import Component, Trailing

HYBRID = (FULL, MAMBA, DRAFT)
SLIDING_DRAFT = Component(name="draft", coverage=Trailing(128), required=False)
"""A draft whose layers all slide, in a pool of its own."""
WIDE = Component(name="wide", coverage=Trailing(128))


def again(prompt: Tokens, count: int) -> list[Request]:
    """The same prompt again and again, with some output."""
    return [ask(prompt, text(f"output {number}", 20)) for number in range(count)]


def turns(first: int, more: int, count: int) -> list[Request]:
    """A conversation."""
    whole = text("conversation", first + more * count + 20)
    return [ask(whole[:end], whole[end : end + 20]) for end in range(first, first + more * count, more)]


def shots(count: int) -> list[Request]:
    """Questions behind the same examples, whose end the scheduler knows."""
    return [ask(text("examples", 512) + text(f"question {number}", 50), (), 512, 562) for number in range(count)]


EXHIBITS = (
    Exhibit(
        name="any-draft-no-hit",
        thread=vllm(54360),
        title="With a draft the hits are 0, without a word",
        reported="Qwen3.8-27B: a prompt of 18,219 tokens sent again hits 0 with any draft, and hits without one.",
        components=HYBRID,
        chunk_tokens=2048,
        block_tokens=784,
        script=serve(*again(text("prompt", 18219), 2)),
        ceiling=18176,
        why="All but the last token is known, and a state can be saved at 18,176.",
        lesson="A draft shares the pages of full attention and is optional.",
    ),
    Exhibit(
        name="mixed-draft",
        thread=vllm(50457, "pull"),
        title="A draft of four sliding layers and a full one",
        reported="Qwen3.6-27B with a mixed draft: 0 of 1,045,583 tokens hit, of a prompt of 55,009 sent again and again.",
        components=(*HYBRID, Component(name="draft window", coverage=Trailing(128), required=False)),
        script=serve(*again(text("prompt", 5009), 4)),
        ceiling=14976,
        why="Three prompts find all but the last token (a prompt of an eleventh), 4,992 on the grid of states.",
        lesson="Both of the draft's kinds are optional components, and a match looks at neither.",
    ),
    Exhibit(
        name="three-attention-groups",
        thread=vllm(51771),
        title="Write side and read side of windows disagree under a draft",
        reported="DeepSeek-V4-Flash with three sliding groups: 0.0 % hit with the draft's block dropped, 72.7 % without the "
        "drop.",
        components=(FULL, SWA, WIDE, DRAFT),
        chunk_tokens=128,
        script=serve(*turns(1000, 90, 5)),
        ceiling=4592,
        why="Each turn has the whole one before, output included.",
        lesson="No block is dropped: where the draft lacks a token, the lease says so in `missing`.",
    ),
    Exhibit(
        name="one-block-of-1072",
        thread=vllm(38182),
        title="A draft costs a fifth of the hit rate",
        reported="Qwen3.5-35B-A3B: one block of 1,072 tokens is dropped for the draft, 21 points of the hit rate.",
        components=HYBRID,
        block_tokens=1072,
        script=serve(*again(text("prompt", 5500), 3)),
        ceiling=10880,
        why="5,440 of 5,500 tokens lie on the grid of states.",
        lesson="Nothing is dropped for the draft: where its KV depends on the next token, keys are pairs of tokens.",
    ),
    Exhibit(
        name="draft-with-its-own-layers",
        thread=vllm(40624),
        title="A draft's own layers make the model hybrid another time",
        reported="Gemma-4-31B with DFlash: 0.0 % of the examples in front of each question hit, 91.1 % without.",
        components=(FULL, SWA, DRAFT),
        chunk_tokens=128,
        script=serve(*shots(6)),
        ceiling=2560,
        why="Five questions find the 512 tokens of examples.",
        lesson="The end of the examples is a checkpoint, where a window is kept.",
    ),
    Exhibit(
        name="first-repeat-misses",
        thread=vllm(53504),
        title="The first repeat misses, the second hits",
        reported="Qwen3.8-27B with multi-token prediction: a prompt of 11,910 tokens is computed twice before it hits.",
        components=HYBRID,
        chunk_tokens=2048,
        block_tokens=1600,
        script=serve(*again(text("prompt", 11910), 2)),
        ceiling=11904,
        why="A state can be saved at 11,904, six tokens before the end.",
        lesson="The state is saved where the next prompt can resume, whatever the draft does.",
    ),
    Exhibit(
        name="draft-window-gone",
        thread=vllm(54661),
        title="A draft's window that is gone vetoes the hit",
        reported="The sliding groups of a draft take part in the smallest common hit, though nothing wrong would come of "
        "their lack.",
        components=(FULL, MAMBA, SLIDING_DRAFT),
        pools={"draft": 28},
        script=serve(*[request for index in range(3) for request in shots(1)], *turns(700, 150, 4)),
        ceiling=3520,
        why="Windows of the draft are not needed, and the other pools have room.",
        lesson="A missing window of an optional component shortens nothing.",
    ),
    Exhibit(
        name="fine-hits-switched-off",
        thread=vllm(53786),
        title="A draft's coarse pages make all hits coarse",
        reported="Qwen3.5 with a sliding draft: fine-grained hits are accepted as a setting, and switched off for all kinds.",
        components=(FULL, MAMBA, SLIDING_DRAFT),
        script=serve(*turns(333, 77, 6)),
        ceiling=2368,
        why="Each turn has the whole one before, up to the grid of states.",
        lesson="A draft's pages are pages like all others, and count in none but its own pool.",
    ),
)
