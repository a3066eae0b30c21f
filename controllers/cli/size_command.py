"""The command `unified-tree size`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from unified_tree.controllers.cli.arguments import Arguments
from unified_tree.controllers.cli.options import COMMON, FILE, GROUPS, OPTIONS, GroupedCommand, Number
from unified_tree.controllers.workbench.report.output_files import OutputFiles
from unified_tree.controllers.workbench.report.report import print_header
from unified_tree.controllers.workbench.report.text_table import progress_bar, report_console
from unified_tree.controllers.workbench.runs.plan import GIB, RowKind, RowSpec, split_for_server
from unified_tree.controllers.workbench.runs.row import run_rows
from unified_tree.controllers.workbench.sizing.needs import Needs
from unified_tree.controllers.workbench.sizing.sample import Sample
from unified_tree.controllers.workbench.sizing.size_report import print_sizes, write_json
from unified_tree.controllers.workbench.sizing.sizes import path_sizes, sizes_of, split_name
from unified_tree.controllers.workbench.sizing.surface import survey
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.runs.plan import Plan
    from unified_tree.controllers.workbench.sizing.sizes import Sizes


def learned_split(plan: Plan, *, jobs: int | None = None) -> dict[str, int]:
    """The best split of the device for the plan's workload under `lru`, as `unified-tree size` prints it: pages by pool.

    Args:
        jobs: passes at once; None for as many as there are cores.

    Goes over a sample of about `MOST_REQUESTS` requests, whole sessions, some 15 times. Raises ConfigurationError where not
    even one request would fit.
    """
    proposed = split_for_server(plan.composition, plan.device_bytes, plan.settings)
    needs = Needs.of(plan.composition.components, plan.composition.page_size, plan.settings.chunk_tokens)
    sample = Sample.of(plan.workload, MOST_REQUESTS / len(plan.workload.requests))
    surface = survey(sample, needs, plan.settings, path_sizes(plan, needs, proposed), jobs, lambda: None)
    return dict(sizes_of(plan, surface, proposed).recommended.page_counts)


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
            help="Replay the best split and the proposed or given one through the real cache, all requests, and print the "
            "model's error.",
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
    common = COMMON | {"sample", "check"}


POLICY = "lru"
"""The eviction policy that the model of a cache follows."""


@click.command(name="size", cls=SizeCommand, params=[click.Argument(["trace"], required=False, type=FILE), *SIZE_OPTIONS])
def size_command(**given: Any) -> None:
    """Say how much memory TRACE, or the built-in agent workload, needs: hits over GiB, by tier and by pool.

    A model of the cache under LRU goes over the workload once for each of some sizes of the paths, and knows then the hits
    for all sizes of the other pools. From that come the curves of device, host and store, what one more GiB adds, and the
    best split of the device.
    """
    arguments = Arguments({option.name: option.default for option in OPTIONS} | given | {"storage_gib": None})
    files = OutputFiles(csv=None, json=given["json_path"], plot=given["plot_path"])
    files.check()
    page_counts = arguments.page_counts
    with progress_bar("reading the workload", arguments.trace_bytes, then="building the workload") as advance:
        plan = arguments.plan(advance)
    storage_gib = given["storage_gib"]
    needs = Needs.of(plan.composition.components, plan.composition.page_size, plan.settings.chunk_tokens)
    share = MOST_REQUESTS / len(plan.workload.requests) if given["sample"] is None else given["sample"] / 100
    sample = Sample.of(plan.workload, share)
    console = report_console()
    print_header(console, plan, page_counts, split_name(plan, page_counts))
    sizes = path_sizes(plan, needs, page_counts)
    with progress_bar("going over the workload", len(sizes)) as advance:
        surface = survey(sample, needs, plan.settings, sizes, arguments.jobs, lambda: advance(1))
    found = sizes_of(plan, surface, page_counts, None if storage_gib is None else int(storage_gib * GIB))
    checked = _check(plan, found, arguments.jobs) if given["check"] else None
    print_sizes(console, sample, found, checked)
    try:
        if files.json is not None:
            write_json(files.json, plan, sample, found, checked)
        if files.plot is not None:
            from unified_tree.controllers.workbench.sizing.size_report import write_plot

            write_plot(files.plot, found, f"{plan.workload.name} on {plan.composition.name}")
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: cannot be written: {error.strerror}") from error


def _check(plan: Plan, found: Sizes, jobs: int | None) -> tuple[float, float]:
    """The hit rates of the proposed or given split and of the best one, replayed through the real cache."""
    specs = [
        RowSpec(kind=RowKind.POLICY, policy=POLICY, page_counts=point.page_counts)
        for point in (found.present, found.recommended)
    ]
    present, recommended = run_rows(plan, specs, jobs or len(specs), lambda *_: None)
    return present.hit_rate, recommended.hit_rate
