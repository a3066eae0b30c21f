"""The options of `unified-tree size`: those of `replay` that say what and where, and its own."""

from __future__ import annotations

import click

from unified_tree.controllers.cli.options import FILE, GROUPS, GroupedCommand, Number

DEVICE = ("device_gib", "pages_text")
HOST = ("host_gib", "host_pages_text")
STORAGE = ("storage_gib",)
OUTPUT = ("json_path", "jobs")
MOST_REQUESTS = 50_000
"""Without --sample so many requests are gone over, or all of a smaller trace."""


def _of(group: str, *names: str) -> list[click.Option]:
    return [option for option in GROUPS[group] if not names or option.name in names]


SIZE_GROUPS: dict[str, list[click.Option]] = {
    "Model": _of("Model"),
    "Memory": [*_of("Device memory", *DEVICE), *_of("Host memory", *HOST), *_of("Storage", *STORAGE)],
    "Server": _of("Server"),
    "Workload": [
        *_of("Workload"),
        click.Option(
            ["--sample"],
            type=Number(min=0, min_open=True, max=100),
            help="Percent of the requests to go over, whole root subtrees chosen by a hash; memory and places are scaled.  "
            f"[default: all, or as many percent as {MOST_REQUESTS:,} requests are]",
        ),
    ],
    "Check": [
        click.Option(
            ["--check"],
            is_flag=True,
            help="Replay both splits through the real cache, all requests, and say how far off the model is.",
        )
    ],
    "Output": [
        *_of("Output", *OUTPUT),
        click.Option(["--plot", "plot_path"], type=FILE, help="Draw the curves (.png, .svg, .pdf)."),
    ],
}
SIZE_OPTIONS = [option for options in SIZE_GROUPS.values() for option in options]


class SizeCommand(GroupedCommand):
    """Its help shows these options by group."""

    groups = SIZE_GROUPS
