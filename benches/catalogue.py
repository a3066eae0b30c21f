"""Which operations there are, and which sizes of each are measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from benches.case import COMPONENT_SETS, Case
from benches.request_scenarios import ChatRequest, CommitPage, DecodeStep, MixedMultiTurn
from benches.scenarios import (
    Evict,
    EvictMamba,
    EvictSwa,
    Insert,
    LockUnlock,
    LockUnlockHeld,
    Match,
    MatchFloor,
    MatchMiss,
    MatchPages,
    Memory,
    Scenario,
)
from benches.serving_scenarios import (
    KeyFromList,
    ServeAgents,
    ServeAgentTrace,
    ServeChats,
    ServeChatsDecoding,
    ServeConversationTrace,
    ServeNextPage,
)

SCENARIOS: dict[str, type[Scenario]] = {
    "match_pages": MatchPages,
    "match": Match,
    "match_floor": MatchFloor,
    "match_miss": MatchMiss,
    "insert": Insert,
    "lock_unlock": LockUnlock,
    "lock_unlock_held": LockUnlockHeld,
    "evict": Evict,
    "evict_swa": EvictSwa,
    "evict_mamba": EvictMamba,
    "chat_request": ChatRequest,
    "mixed_multi_turn": MixedMultiTurn,
    "decode_step": DecodeStep,
    "commit_page": CommitPage,
    "memory": Memory,
    "key_from_list": KeyFromList,
    "serve_next_page": ServeNextPage,
    "serve_chats": ServeChats,
    "serve_chats_decoding": ServeChatsDecoding,
    "serve_agents": ServeAgents,
    "serve_conversation_trace": ServeConversationTrace,
    "serve_agent_trace": ServeAgentTrace,
}
IMPORT = "import"
"""Measured by starting interpreters, so it has no scenario."""
IMPORT_QUESTION = "How long does a fresh interpreter take to import the library and what it needs?"

TREES = ("ours", "rust", "python")
COMPILED = ("ours", "rust")
SERVERS = ("prefix_cache", "sglang", "floor")
LARGE_SIZES = (1024, 8192, 131_072, 1_048_576)
LONG_TOKENS = 32_768


def operation_cases() -> list[Case]:
    """Every operation of the tree at many sizes."""
    cases = [Case(operation=IMPORT, samples=1)]
    for components in COMPONENT_SETS:
        for page_size in (1, 64):
            cases += _at_page_size(components, page_size)
    for page_size in (16, 256):
        base = Case(operation="", page_size=page_size)
        cases += [
            replace(base, operation="match_pages", length=8192, depth=8),
            replace(base, operation="insert", length=8192, depth=8),
            replace(base, operation="evict", tree_nodes=10_000, samples=10),
            replace(base, operation="chat_request", paths=200, samples=400),
        ]
    return cases


def table_cases() -> list[Case]:
    """The rows of the one table: whole requests, their steps, and the tree's operations, over sizes where they have one."""
    cases = serving_cases()
    for components in COMPONENT_SETS:
        for page_size in (1, 64):
            base = Case(operation="", components=components, page_size=page_size, depth=8, rounds=3, samples=30, only=COMPILED)
            for length in LARGE_SIZES:
                at = replace(base, length=length, samples=30 if length < LONG_TOKENS else 10)
                cases += [replace(at, operation="match_pages"), replace(at, operation="insert")]
                if components == "full":
                    cases.append(replace(at, operation="match_floor", only=("ours",)))
            for nodes in (1000, 10_000, 100_000):
                at = replace(base, tree_nodes=nodes, series=f"table-{components}-{page_size}")
                cases.append(replace(at, operation="lock_unlock", length=8192))
                cases.append(replace(at, operation="evict", depth=1, samples=10))
    return cases


def serving_cases() -> list[Case]:
    """Whole requests, beside SGLang's scheduler: every component set at pages of 1 and 64 tokens."""
    cases = [Case(operation="key_from_list", length=length, samples=20, only=SERVERS) for length in LARGE_SIZES]
    for components in COMPONENT_SETS:
        for page_size in (1, 64):
            base = Case(operation="", components=components, page_size=page_size, only=SERVERS)
            cases += [
                *(
                    replace(
                        base, operation="serve_next_page", length=length, samples=60 if length < LONG_TOKENS else 20, rounds=3
                    )
                    for length in LARGE_SIZES
                ),
                replace(base, operation="serve_chats", paths=200, samples=2000, rounds=3, only=(*SERVERS, "sglang_pools")),
                replace(base, operation="serve_chats_decoding", paths=40, samples=400, rounds=3),
                replace(base, operation="serve_agents", length=112_000, paths=8, samples=300, rounds=3),
                replace(base, operation="serve_conversation_trace", length=1 << 21, samples=600, rounds=3),
                replace(base, operation="serve_agent_trace", length=1 << 20, samples=400, rounds=3),
            ]
    return cases


def _at_page_size(components: str, page_size: int) -> Iterable[Case]:
    base = Case(operation="", components=components, page_size=page_size)
    large = TREES if (components, page_size) == ("full", 64) else COMPILED  # half a minute in Python's core
    for length, depth in ((1024, 1), (1024, 8), (8192, 1), (8192, 8), (8192, 64), (32_768, 8), (131_072, 8)):
        samples = 100 if length < LONG_TOKENS else 40
        yield replace(base, operation="match_pages", length=length, depth=depth, samples=samples)
    yield replace(base, operation="match_pages", length=8192, depth=8, paths=64, samples=128)
    for length in (8192, 131_072):
        yield replace(base, operation="match", length=length, depth=8, samples=40)
    if components == "full":
        for length in (8192, LONG_TOKENS, 131_072):
            yield replace(base, operation="match_floor", length=length, samples=40, only=("ours",))
    yield replace(base, operation="match_miss", length=8192)
    for length in (8192, 131_072):
        yield replace(base, operation="insert", length=length, depth=8, samples=40)
    for depth in (1, 8, 64):
        yield replace(base, operation="lock_unlock", length=8192, depth=depth, samples=300)
    yield replace(base, operation="lock_unlock_held", length=8192, depth=64, samples=300)
    yield replace(base, operation="evict", tree_nodes=10_000, samples=10)
    yield replace(base, operation="evict", tree_nodes=100_000, samples=10, only=large)
    if components != "full":
        yield replace(base, operation=components.replace("full", "evict"), tree_nodes=10_000, samples=10)
    yield replace(base, operation="chat_request", paths=200, samples=400)
    for length in (1024, 131_072):
        step = replace(base, operation="decode_step", length=length, paths=256, samples=512, only=("prefix_cache",))
        yield step
        if components == "full_mamba":
            yield replace(step, components="full_mamba_256")
    for length in LARGE_SIZES:
        yield replace(base, operation="commit_page", length=length, samples=100, only=("prefix_cache",))
    yield replace(base, operation="mixed_multi_turn", paths=200, samples=200)
    yield replace(base, operation="memory", tree_nodes=100_000, samples=1, rounds=1, only=large)


def growth_cases(nodes: tuple[int, ...], lengths: tuple[int, ...]) -> list[Case]:
    """Every operation over the tree's size and over the prompt's length; cases of one series share one growing tree."""
    cases = []
    for components in COMPONENT_SETS:
        for count in nodes:
            only = TREES if count <= 10_000 and components == "full" else COMPILED if components == "full" else ("ours",)
            base = Case(
                operation="",
                components=components,
                tree_nodes=count,
                series=f"tree-{components}",
                length=8192,
                depth=8,
                samples=30,
                rounds=3,
                only=only,
            )
            cases += [replace(base, operation=name) for name in ("match_pages", "insert", "lock_unlock", "lock_unlock_held")]
            cases.append(replace(base, operation="evict", length=0, depth=1, samples=10))
    for length in lengths:
        base = Case(
            operation="",
            length=length,
            depth=8,
            samples=30 if length < LONG_TOKENS else 10,
            rounds=3,
            only=TREES,
            series=f"prompt-{length}",
        )
        cases += [replace(base, operation=name) for name in ("match_pages", "match", "insert", "lock_unlock")]
    return cases


NODES = (1000, 10_000, 100_000, 1_000_000)
LENGTHS = (1024, 4096, 16_384, 65_536, 262_144, 1_048_576)


def quick(cases: Iterable[Case]) -> list[Case]:
    """The same rows, each so small that all take seconds; rows that become equal are merged."""
    small = [
        replace(
            case,
            length=min(case.length, 1024),
            depth=min(case.depth, 4),
            paths=min(case.paths, 8),
            tree_nodes=min(case.tree_nodes, 300),
            samples=min(case.samples, 3),
            rounds=min(case.rounds, 2),
        )
        for case in cases
    ]
    return list(dict.fromkeys(small))
