"""States: recurrent layers can resume only where a state was saved, and it was saved elsewhere or not at all."""

from __future__ import annotations

from exhibit import FULL, MAMBA, Exhibit, Preempt, Request, Start, Step, Tokens, ask, serve, sglang, text, vllm

HYBRID = (FULL, MAMBA)


def branches(prefix: Tokens, tails: tuple[int, ...], *checkpoints: int) -> list[Request]:
    """Prompts that begin alike and end on their own."""
    return [ask(prefix + text(f"tail {index}", length), (), *checkpoints) for index, length in enumerate(tails)]


def fluctuating() -> list[Request]:
    first = text("session", 6000)
    return [
        ask(first, (), 4992, 6000),
        ask(first[:5120] + text("second", 400), (), 4992, 5520),
        ask(first[:4992] + text("third", 500), (), 4992, 5492),
    ]


def images() -> list[Request]:
    seen = text("images", 5 * 272)
    ends = range(272, 5 * 272 + 1, 272)
    return [ask(seen[:end] + text("what has changed?", 40), (), end, end + 40) for end in ends]


def regenerated() -> list[Request]:
    prompt = text("question", 300)
    return [ask(prompt, text("answer", 260)), ask(prompt, text("another answer", 200)), ask(prompt + text("and then?", 30))]


def rounds() -> list[Request]:
    whole = text("round", 100) + text("answer", 50)
    more = whole + text("next", 50)
    return [ask(whole[:100], whole[100:]), ask(more, text("answer 2", 50)), ask(more + text("answer 2", 50) + text("last", 20))]


def retracted() -> tuple[Step, ...]:
    """A request that gives way to another while it decodes, and comes back."""
    first = ask(text("retracted", 300), text("its answer", 200))
    back = ask(first.prompt + first.output[:100], first.output[100:])
    return (Start(first), Preempt(first, 100), *serve(ask(text("urgent", 400)), back))


EXHIBITS = (
    Exhibit(
        name="same-prompt-again",
        thread=sglang(21158),
        title="The same prompt never hits",
        reported="Qwen3.5-35B-A3B with a token a page: the hit rate stays 0 for one prompt sent again and again.",
        components=HYBRID,
        page_size=1,
        script=serve(*[ask(text("prompt", 200)) for _ in range(3)]),
        ceiling=384,
        why="A state at 192 serves each later prompt of 200 tokens.",
        lesson="States are saved on the grid below the end, where a prompt of the same length can resume.",
    ),
    Exhibit(
        name="split-without-a-state",
        thread=sglang(22935),
        title="A split node has a path and no state",
        reported="A look-up of one token less than the prompt ends inside an edge; the upper half has no state, so nothing "
        "hits.",
        components=HYBRID,
        script=serve(
            ask(text("prompt", 250)),
            ask(text("prompt", 250)),
            ask(text("prompt", 250) + text("more", 100)),
            ask(text("prompt", 230) + text("else", 30)),
        ),
        ceiling=576,
        why="All three later prompts have 192 tokens, a place on the grid of states.",
        lesson="A match never splits, and a state stays at its length whatever is cut around it.",
    ),
    Exhibit(
        name="prompt-ends-on-the-grid",
        thread=sglang(21350, "pull"),
        title="A state at the very end of a prompt is one token too deep",
        reported="A prompt whose length is on the grid leaves its state at its end, where the same prompt cannot resume.",
        components=HYBRID,
        script=serve(*[ask(text("prompt", 256)) for _ in range(4)]),
        ceiling=576,
        why="At least one of 256 tokens is computed, so 192 can be hit.",
        lesson="A second state is saved a step of the grid before the end, where the prompt resumes when it comes again.",
    ),
    Exhibit(
        name="state-in-unique-tokens",
        thread=vllm(45238),
        title="The only state lies behind what is shared",
        reported="Prompts of 3,000, 5,000 and 5,000 tokens share 2,000 and hit 0, as the state is saved in each one's own "
        "part.",
        components=HYBRID,
        chunk_tokens=8192,
        block_tokens=528,
        script=serve(*branches(text("shared", 2000), (1000, 3000, 3000))),
        ceiling=3968,
        why="Two prompts find 2,000 tokens, of which 1,984 lie on the grid of states.",
        lesson="The second prompt shows where texts branch, so a state is saved there and the third hits; a named "
        "checkpoint would serve the second, too. With chunks of 256 tokens instead of 8,192, and states to spare, "
        "SGLang's core hits 3,776.",
        lost={"never_saved": 1984},
        gap=1984,
    ),
    Exhibit(
        name="one-request-at-a-time",
        thread=vllm(42317),
        title="Hits depend on how busy the server is",
        reported="Qwen3.6-35B: 0 % at one request at a time, some at many, whose prefills are cut up and so leave states by "
        "chance.",
        components=HYBRID,
        block_tokens=528,
        script=serve(*branches(text("tools", 1024), (200, 300, 250, 220), 1024, 9999)),
        chunk_tokens=4096,
        ceiling=3072,
        why="Three prompts find the 1,024 tokens of the tools.",
        lesson="A run stops at the checkpoint that the scheduler named, and saves a state there.",
    ),
    Exhibit(
        name="prefixes-of-about-the-same-length",
        thread=sglang(37198, "pull"),
        title="Shared prefixes that differ by a page",
        reported="Requests share 5,120 and 4,992 tokens with one of 6,000 (Kimi-K3, pages of 64), and neither hits.",
        components=HYBRID,
        page_size=64,
        chunk_tokens=8192,
        script=serve(*fluctuating()),
        ceiling=10112,
        why="A cache that knew them would save states at 5,120 and at 4,992.",
        lesson="A checkpoint at 4,992, where the stable part ends, serves both; the last 128 tokens of one are its price.",
        lost={"never_saved": 128},
        gap=128,
    ),
    Exhibit(
        name="one-more-image-each-turn",
        thread=vllm(43587),
        title="A prompt that grows in its middle",
        reported="Qwen3.5: each turn adds an image before the same question, and 0 tokens are cached each time.",
        components=HYBRID,
        block_tokens=528,
        script=serve(*images()),
        ceiling=2624,
        why="Each prompt has all images of the one before.",
        lesson="The end of the last image is a checkpoint, so that each turn resumes behind the last one's images.",
    ),
    Exhibit(
        name="state-retired-while-decoding",
        thread=vllm(57253, "pull"),
        title="Decoding frees the state that later prompts resume from",
        reported="Once an answer grows past its prompt, the state at the prompt's end is released, and under load overwritten.",
        components=HYBRID,
        pools={"mamba": 6},
        script=serve(*regenerated()),
        ceiling=512,
        why="Both later prompts have the first one's 300 tokens, 256 on the grid of states.",
        lesson="A published state is the tree's; what moves along while decoding is a page of its own.",
    ),
    Exhibit(
        name="retracted-without-its-state",
        thread=sglang(22493, "pull"),
        title="A retraction saves the KV and drops the state",
        reported="Qwen3.5-397B: when a request was retracted, only its KV was kept, and its output was wrong when it came "
        "back.",
        components=HYBRID,
        pools={"full": 64, "mamba": 4},
        script=retracted(),
        ceiling=384,
        why="It comes back with 400 tokens, of which 384 lie on the grid of states.",
        lesson="`preempt` publishes what was computed, with the last state that was saved on the grid.",
    ),
    Exhibit(
        name="chunks-below-the-state-grid",
        thread=sglang(30938, "pull"),
        title="Chunks too short to save a state in",
        reported="Nemotron with chunks of 16 tokens: a state is tracked only in chunks as long as the kernel's own, so none "
        "is saved.",
        components=HYBRID,
        chunk_tokens=16,
        script=serve(*[ask(text("prompt", 400) + text(f"question {index}", 30)) for index in range(4)]),
        ceiling=1152,
        why="Three prompts find 400 tokens, of which 384 lie on the grid of states.",
        lesson="Runs stop where a state is due, however short their chunks.",
    ),
    Exhibit(
        name="output-not-in-the-key",
        thread=sglang(16521, "pull"),
        title="The next turn finds the prompt and not the answer",
        reported="100 tokens, 50 generated, and 200 in the next turn: 100 hit where 150 are known.",
        components=(FULL,),
        page_size=1,
        script=serve(*rounds()),
        ceiling=400,
        why="The second prompt has 150 known tokens and the third 250.",
        lesson="A commit takes the tokens generated, and they become a part of the path.",
    ),
)
