"""The options of `unified-tree replay`, in the groups in which `--help` shows them."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unified_tree.controllers.host.host_tier import DEFAULT_FLOPS_PER_S, WritePolicy
from unified_tree.controllers.storage_tier import PrefetchMode, PrefetchPolicy
from unified_tree.controllers.workbench.server.server_settings import (
    DEFAULT_LATENCY_US,
    HOST_GB_PER_S,
    STORE_GB_PER_S,
)
from unified_tree.controllers.workbench.traces.synthetic import MULTITURN, MultiturnOptions
from unified_tree.controllers.workbench.traces.trace_records import PER_SECOND
from unified_tree.policies.table import POLICIES

if TYPE_CHECKING:
    from click import Context, HelpFormatter, Parameter

DEFAULT_MODEL = "gpt-oss-20b"
DEFAULT_DEVICE_GIB = 8.0
COMPARED_POLICIES = ("lru", "density")
"""The policies that are replayed unless some are named: recency, and the library's default."""
ALL_POLICIES = "all"
"""In place of policies."""
LEARNED = "learned"
"""In place of page counts."""
SIZE_RATIO = 10
"""A store is taken to hold so many times what the host does."""
MAX_GIB = 1_000_000
MULTITURN_COUNTS = {
    "clients": "Conversations.",
    "rounds": "Requests of each.",
    "parallel": "Requests out at a time.",
    "request_tokens": "The first prompt, tokens.",
    "answer_tokens": "Every answer, tokens.",
    "follow_up_tokens": "What later prompts add, tokens.",
}


class Number(click.FloatRange):
    """A finite number in a range."""

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> Any:
        """See click.ParamType.convert."""
        number = super().convert(value, param, ctx)
        return number if isfinite(number) else self.fail(f"{number} is not a finite number.", param, ctx)


class GivenPath(click.Path):
    """A path that a file can have."""

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> Any:
        """See click.ParamType.convert."""
        if "\0" in str(value):
            self.fail("a file's name has no NUL.", param, ctx)
        return super().convert(value, param, ctx)


FILE = GivenPath(path_type=Path)
GIB_COUNT = Number(min=0, min_open=True, max=MAX_GIB)
POSITIVE = Number(min=1e-9, max=1e12)
TOKENS = click.IntRange(max=1 << 24)
SOME = click.IntRange(max=1 << 32)
"""Bounded above here, and below by the settings that they become."""
REQUESTS = click.IntRange(min=1, max=10_000_000)
BLOCK = click.IntRange(min=1, max=1 << 24)
LAYERS = click.IntRange(max=1 << 12)
SEED = click.IntRange(min=0, max=(1 << 63) - 1)


def _option(name: str, kind: Any, text: str, default: Any = None, **more: Any) -> click.Option:
    return click.Option([*name.split()], type=kind, default=default, show_default=default is not None, help=text, **more)


GROUPS: dict[str, list[click.Option]] = {
    "Model": [
        _option(
            "--model",
            None,
            "A built-in model, see `unified-tree models`; or FILE.yaml or FILE.json that describes one or is its config.json.  "
            f"[default: {DEFAULT_MODEL}]",
        ),
        _option("--config", FILE, "A model's config.json (Hugging Face)."),
        _option("--page-size", TOKENS, "Tokens a page.  [default: 64, or what the model needs]"),
        _option("--tp", TOKENS, "Tensor-parallel ranks.", 1),
        _option("--ignore", str, "A field of the config.json to read it without; several times.", multiple=True),
        _option("--kv-dtype", str, "Type of keys and values.  [default: what the model's file says, else bfloat16]"),
        _option("--draft", LAYERS, "Draft (MTP, EAGLE) layers shaped like the model's own.", 0),
    ],
    "Device memory": [
        _option("--device-gib", GIB_COUNT, "Device memory for the cache, GiB a rank.", DEFAULT_DEVICE_GIB),
        _option(
            "--pages pages_text",
            None,
            "Pages by pool, full=4096,swa=512; what is not named is split from the budget. Or the word "
            f"{LEARNED}: the split that `unified-tree size` recommends for this workload.",
        ),
        _option(
            "--shared-pools",
            None,
            "Also replay each policy with the memory of each tier as one budget that all its pools share.",
            is_flag=True,
        ),
        _option(
            "--policy policies",
            None,
            f"Eviction policies, a,b,c: {', '.join(POLICIES)}, or {ALL_POLICIES}; of an installed package; MODULE:FACTORY.  "
            f"[default: {','.join(COMPARED_POLICIES)}]",
            multiple=True,
        ),
        _option("--no-advice", None, "Do not estimate what other memory or another split would bring.", is_flag=True),
        _option(
            "--certify",
            None,
            "Bound the best possible tightly, with more rows: takes some five times as long.",
            is_flag=True,
        ),
    ],
    "Host memory": [
        _option("--host-gib", GIB_COUNT, "Host memory behind it, GiB a rank.  [default: no host tier]"),
        _option(
            "--host-pages host_pages_text", None, "Host pages by component, as --pages; the rest is split from --host-gib."
        ),
        _option(
            "--write-policy",
            click.Choice([policy.value for policy in WritePolicy]),
            f"When what can be resumed from is copied to host: {', '.join(policy.value for policy in WritePolicy)}.  "
            "[default: write-through]",
            metavar="POLICY",
        ),
        _option(
            "--host-gb-per-s",
            POSITIVE,
            f"Rate of the bus to host, each way, GB/s.  [default: {HOST_GB_PER_S:g}]",
        ),
    ],
    "Storage": [
        _option(
            "--storage",
            None,
            "A store behind host memory: memory, file:DIR, redis:HOST:PORT; --help-all says which more.",
            metavar="NAME[:PLACE]",
        ),
        _option(
            "--storage-gib",
            GIB_COUNT,
            "What a file or memory store holds, GiB of true pages a rank; a replay writes far smaller ones.  "
            f"[default: {SIZE_RATIO} times the host's]",
        ),
        _option(
            "--storage-gb-per-s",
            POSITIVE,
            f"Modelled rate of the store, each way, GB/s.  [default: {STORE_GB_PER_S:g}]",
        ),
        _option(
            "--storage-latency-us",
            Number(min=0, max=1e12),
            f"Modelled latency of each of its calls, µs.  [default: {DEFAULT_LATENCY_US:g}]",
        ),
        _option(
            "--prefetch",
            click.Choice([mode.value for mode in PrefetchMode]),
            f"When a request stops waiting for its prefetch.  [default: {PrefetchPolicy().mode.value}]",
        ),
    ],
    "Server": [
        _option("--concurrency", SOME, "Requests running at once.", 32),
        _option("--chunk-tokens", SOME, "Prompt tokens a step.", 8192),
        _option("--step-ms", Number(), "Milliseconds a step.", 20.0),
        _option(
            "--prefill-tflops",
            POSITIVE,
            "Model latency: prompts are computed at so many TFLOP/s, all ranks together, and times to the first token "
            f"reported.  [default: no such model; of {MULTITURN} {DEFAULT_FLOPS_PER_S / 1e12:g} a rank]",
        ),
    ],
    "Workload": [
        _option("--requests", REQUESTS, "Replay so many requests.  [default: all of a trace, 6000 built-in ones]"),
        _option(
            "--tenant tenants",
            None,
            "NAME=FILE: mix this trace with TRACE, as a tenant's of that name; several times.",
            multiple=True,
        ),
        _option(
            "--floor floors",
            None,
            "NAME=SHARE: what that tenant may count on of every pool, from 0 to 1; several times.  [default: 0]",
            multiple=True,
        ),
        _option(
            "--share-after",
            click.IntRange(min=2, max=64),
            "A prefix is common to the trace's tenants once so many other ones have shown it.  [default: never]",
        ),
        _option("--time-scale", Number(), "Factor on arrival times; 0: all at once.", 1.0),
        _option("--block-size", BLOCK, "Tokens a block of the trace.  [default: what the trace says, or 512]"),
        _option(
            "--clock-unit",
            click.Choice(list(PER_SECOND)),
            "What the times in the trace count.  [default: what its format has, and the report says]",
        ),
        _option(
            "--sub-agent-clock",
            click.Choice(["root", "parent"]),
            "What times of sub-agents count from.  [default: what the trace shows]",
        ),
        _option("--tokenizer", FILE, "A tokenizer.json, for a trace of texts.  [default: a token a byte]"),
        _option(
            "--sessions",
            None,
            "Tell the cache of the trace's sessions: each ends with its last turn, and is retained between turns.",
            is_flag=True,
        ),
        _option("--session-gap-s", Number(min=0, max=1e9), "Mean time between two sessions' starts.", 30.0),
        _option("--seed", SEED, "Of the built-in workload and of sessions' starts.", 0),
        *(
            _option(
                f"--{name.replace('_', '-')}",
                REQUESTS,
                f"{MULTITURN}: {text}  [default: {getattr(MultiturnOptions(), name):,}]",
            )
            for name, text in MULTITURN_COUNTS.items()
        ),
    ],
    "Verification": [
        _option(
            "--verify",
            None,
            "Move and compare real bytes, 64 a page; exit code 1 if any is wrong. With a host tier it needs the extra "
            "`tensors` (torch).",
            is_flag=True,
        ),
        _option("--verify-full-bytes", None, "The same with the model's true page sizes, for small traces.", is_flag=True),
    ],
    "Output": [
        _option(
            "--html html_path",
            FILE,
            "Write the report as one page with figures.",
        ),
        _option("--csv csv_path", FILE, "Write the rows as CSV."),
        _option("--json json_path", FILE, "Write the rows as JSON."),
        _option("--figures figures_path", FILE, "Write what `unified-tree doctor` reads."),
        _option(
            "--inspect inspect_path",
            FILE,
            "Record the first policy's row for `unified-tree inspect`: figures, evictions, requests, and its tree at the end.",
        ),
        _option("--plot plot_path", FILE, "Draw the rows (.png, .svg, .pdf); replays some more."),
        _option("--jobs", click.IntRange(min=1, max=1024), "Rows replayed at once, each in a process.  [default: one a core]"),
    ],
}


OPTIONS = [option for options in GROUPS.values() for option in options]


COMMON = frozenset(
    (
        "model",
        "config",
        "device_gib",
        "host_gib",
        "storage",
        "policies",
        "certify",
        "requests",
        "html_path",
        "json_path",
        "plot_path",
    )
)
"""The options that `--help` shows; `--help-all` shows all."""


class GroupedCommand(click.Command):
    """A command whose help shows its options by group: the common ones with --help, all of them with --help-all."""

    groups = GROUPS
    common = COMMON

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                expose_value=False,
                is_eager=True,
                callback=self._tell_all,
                help="Show all options.",
            )
        )

    def _tell_all(self, ctx: Context, _: Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta[HELP_ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    def format_help_text(self, ctx: Context, formatter: HelpFormatter) -> None:
        """See click.Command.format_help_text: the first paragraph, or all."""
        whole = self.help or ""
        self.help = whole if HELP_ALL in ctx.meta else whole.partition("\n\n")[0]
        try:
            super().format_help_text(ctx, formatter)
        finally:
            self.help = whole

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """See click.Command.format_options."""
        for title, options in self.groups.items():
            shown = [option for option in options if HELP_ALL in ctx.meta or option.name in self.common]
            if shown:
                with formatter.section(title):
                    formatter.write_dl([entry for option in shown if (entry := option.get_help_record(ctx)) is not None])
        if HELP_ALL not in ctx.meta:
            formatter.write_paragraph()
            formatter.write_text(f"All options: {ctx.command_path} --help-all")


HELP_ALL = "unified_tree.help_all"
"""In a context's `meta`: that all is asked for."""
