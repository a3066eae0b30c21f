"""The options of modelled latency and of the multi-turn workload, and from what was given to their settings."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

import click

from unified_tree.controllers.host.load_cost import DEFAULT_FLOPS_PER_S
from unified_tree.controllers.replay.multiturn import MULTITURN, MultiturnOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

COUNTS = {
    "clients": "Conversations.",
    "rounds": "Requests of each.",
    "parallel": "Requests out at a time.",
    "request_tokens": "The first prompt, tokens.",
    "answer_tokens": "Every answer, tokens.",
    "follow_up_tokens": "What later prompts add, tokens.",
}


def latency_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    defaults = MultiturnOptions()
    for name, text in reversed(COUNTS.items()):
        default = getattr(defaults, name)
        help_text = f"{MULTITURN}: {text}  [default: {default:,}]"
        command = click.option(f"--{name.replace('_', '-')}", type=int, help=help_text)(command)
    return click.option(
        "--prefill-tflops",
        type=float,
        help="Model latency: prompts are computed at so many TFLOP/s, all ranks together, and times to the first token "
        f"reported.  [default: no such model; of {MULTITURN} {DEFAULT_FLOPS_PER_S / 1e12:g} a rank]",
    )(command)


def is_multiturn(given: Mapping[str, Any]) -> bool:
    """Whether the built-in multi-turn workload was asked for. Raises click.UsageError for its options without it."""
    if given["trace"] is not None and str(given["trace"]) == MULTITURN:
        return True
    for name in COUNTS:
        if given[name] is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} is for the built-in workload: replay {MULTITURN}")
    return False


def multiturn_from(given: Mapping[str, Any]) -> MultiturnOptions:
    """The parameters of the multi-turn workload. Raises ConfigurationError."""
    return MultiturnOptions(**{name: given[name] for name in COUNTS if given[name] is not None})


def prefill_flops_from(given: Mapping[str, Any]) -> float | None:
    """FLOP/s of all ranks together; None where latency is not modelled."""
    tflops = given["prefill_tflops"]
    if tflops is None:
        return DEFAULT_FLOPS_PER_S * float(given["tp"]) if is_multiturn(given) else None
    if not (isfinite(tflops) and tflops > 0):
        raise click.BadParameter(f"must be a number above zero, not {tflops}", param_hint="--prefill-tflops")
    return float(tflops) * 1e12
