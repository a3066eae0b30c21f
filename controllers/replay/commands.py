"""The commands of `unified-tree`. Whatever is wrong with the input ends in one line on stderr and exit code 2."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from unified_tree.controllers.host.host_tier import WritePolicy
from unified_tree.controllers.replay.given_latency import latency_options, prefill_flops_from
from unified_tree.controllers.replay.given_options import DEFAULT_MODEL, budget_from, composition_from, positive, workload_from
from unified_tree.controllers.replay.given_storage import linker_from, storage_from, storage_options
from unified_tree.controllers.replay.given_tiers import host_from, verification_from
from unified_tree.controllers.replay.host_settings import DEFAULT_GB_PER_S
from unified_tree.controllers.replay.output_files import OutputFiles
from unified_tree.controllers.replay.row import Plan
from unified_tree.controllers.replay.row_processes import run_rows
from unified_tree.controllers.replay.row_specs import report_specs, sweep_specs
from unified_tree.controllers.replay.row_tiers import Verification, check_links, check_opens, check_room
from unified_tree.controllers.replay.server_settings import ServerSettings
from unified_tree.errors import UnifiedTreeError
from unified_tree.policies import POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from unified_tree.controllers.replay.row import RowSpec

DEFAULT_DEVICE_GIB = 8.0
REPORT_COLUMNS = 120
WRONG_BYTES = 1
BAD_INPUT = 2


class OneLineErrors(click.Group):
    """A group of commands that report an error in one line."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line; exits the process."""
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            sys.exit(BAD_INPUT)
        except click.ClickException as error:
            _complain(error.format_message())
        except UnifiedTreeError as error:
            _complain(str(error))
        except click.Abort:
            click.echo("aborted", err=True)
            sys.exit(130)
        sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> NoReturn:
    click.echo("error: " + " ".join(message.split()), err=True)
    sys.exit(BAD_INPUT)


@click.group(cls=OneLineErrors)
@click.version_option(package_name="unified-tree")
def app() -> None:
    """A prefix cache for hybrid language models."""


@app.command(name="replay")
@click.argument("trace", required=False, type=click.Path(path_type=Path))
@click.option("--config", type=click.Path(path_type=Path), help="A model's config.json (Hugging Face).")
@click.option("--model", help=f"A built-in model, see `unified-tree models`.  [default: {DEFAULT_MODEL}]")
@click.option(
    "--device-gib", type=float, default=DEFAULT_DEVICE_GIB, show_default=True, help="Device memory for the cache, GiB a rank."
)
@click.option("--pages", "pages_text", help="Pages by pool, full=4096,swa=512; what is not named is split from the budget.")
@click.option("--host-gib", type=float, help="Host memory behind it, GiB a rank.  [default: no host tier]")
@click.option("--host-pages", "host_pages_text", help="Host pages by component, as --pages; the rest is split from --host-gib.")
@click.option(
    "--write-policy",
    type=click.Choice([policy.value for policy in WritePolicy]),
    help="When boundaries are copied to host.  [default: write-through]",
)
@click.option("--host-gb-per-s", type=float, help=f"Rate of the bus to host, each way, GB/s.  [default: {DEFAULT_GB_PER_S:g}]")
@storage_options
@latency_options
@click.option("--verify", is_flag=True, help="Move and compare real bytes, 64 a page; exit code 1 if any is wrong.")
@click.option("--verify-full-bytes", is_flag=True, help="The same with the model's true page sizes, for small traces.")
@click.option("--page-size", type=int, help="Tokens a page.  [default: 64, or what the model needs]")
@click.option("--tp", type=int, default=1, show_default=True, help="Tensor-parallel ranks.")
@click.option("--kv-dtype", default="bfloat16", show_default=True, help="Type of keys and values.")
@click.option("--draft", type=int, default=0, show_default=True, help="Draft (MTP, EAGLE) layers shaped like the model's own.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    help=f"Eviction policy, several times or a,b,c; one of your own as module:factory.  [default: {','.join(POLICIES)}]",
)
@click.option("--concurrency", type=int, default=32, show_default=True, help="Requests running at once.")
@click.option("--chunk-tokens", type=int, default=8192, show_default=True, help="Prompt tokens a step.")
@click.option("--step-ms", type=float, default=20.0, show_default=True, help="Milliseconds a step.")
@click.option("--time-scale", type=float, default=1.0, show_default=True, help="Factor on arrival times; 0: all at once.")
@click.option("--requests", type=int, help="Replay so many requests.  [default: all of a trace, 6000 built-in ones]")
@click.option("--block-size", type=int, help="Tokens a block of the trace.  [default: what the trace says, or 512]")
@click.option("--session-gap-s", type=float, default=30.0, show_default=True, help="Mean time between two sessions' starts.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the built-in workload and of sessions' starts.")
@click.option("--jobs", type=int, help="Rows replayed at once, each in a process.  [default: one a core]")
@click.option("--csv", "csv_path", type=click.Path(path_type=Path), help="Write the rows as CSV.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the rows as JSON.")
@click.option(
    "--plot", "plot_path", type=click.Path(path_type=Path), help="Draw the rows (.png, .svg, .pdf); replays some more."
)
def replay_command(**given: Any) -> int:
    """Replay TRACE, or a built-in agent workload, and report what a cache of this size would do under each policy.

    TRACE is a Mooncake block trace or a kv-cache-tester session trace, plain or gzip; or the word `multiturn`, for the
    built-in workload of clients that take turns in long conversations. With --host-gib evicted prefixes come
    back from host memory over a simulated bus: transfers of one direction go one after the other, and a request computes
    nothing before all of its load has arrived. With --storage what is on host goes on to a store, and what the store has of a
    prompt comes to host while the prompt waits; the engine is real, the time its calls take is modelled. With LMCache as the
    storage, what is computed is stored from device pages, and what is found of a prompt comes to device pages while it waits.
    """
    files = OutputFiles(csv=given["csv_path"], json=given["json_path"], plot=given["plot_path"])
    files.check()
    settings = ServerSettings(
        concurrency=given["concurrency"],
        chunk_tokens=given["chunk_tokens"],
        step_ms=given["step_ms"],
        time_scale=given["time_scale"],
        prefill_flops_per_s=prefill_flops_from(given),
    )
    composition = composition_from(given)
    page_counts, device_bytes = budget_from(composition, settings, given)
    policies = [name.strip() for text in given["policies"] for name in text.split(",")] or list(POLICIES)
    specs = report_specs(policies, page_counts)
    verification = verification_from(given)
    host = host_from(composition, given)
    one_by_one = verification is Verification.FULL  # rows side by side would each take all of the memory
    jobs = positive(given, "jobs") or (1 if one_by_one else os.cpu_count() or 1)
    plan = Plan(
        workload=workload_from(given),
        composition=composition,
        device_bytes=device_bytes,
        settings=settings,
        host=host,
        storage=storage_from(composition, host, given),
        linker=linker_from(given),
        verification=verification,
    )
    sweep = sweep_specs(policies, plan) if files.plot is not None else []
    at_once = min(jobs, len(specs) + len(sweep))
    check_room(composition, page_counts, host, verification, at_once, is_linked=plan.linker is not None)
    if plan.linker is not None:
        check_links(composition, plan.linker, page_counts, verification, specs[0].store_name)
    if plan.storage is not None:
        check_opens(composition, plan.storage, verification, specs[0].store_name)
    return _replay_and_report(plan, specs, sweep, files, jobs)


def _replay_and_report(plan: Plan, specs: list[RowSpec], sweep: list[RowSpec], files: OutputFiles, jobs: int) -> int:
    """Returns the exit code."""
    from rich.console import Console

    from unified_tree.controllers.replay.latency_report import print_latency
    from unified_tree.controllers.replay.report import print_header, print_rows
    from unified_tree.controllers.replay.storage_report import (
        print_linked,
        print_linker_header,
        print_storage,
        print_storage_header,
    )
    from unified_tree.controllers.replay.tier_report import print_host_header, print_tiers

    console = Console()
    if not console.is_terminal:
        console = Console(width=REPORT_COLUMNS)
    print_header(console, plan, specs[0].page_counts)
    if plan.host is not None:
        print_host_header(console, plan.composition, plan.host)
    if plan.storage is not None:
        print_storage_header(console, plan.storage)
    if plan.linker is not None:
        print_linker_header(console, plan.linker)
    with _progress_bar(plan, [*specs, *sweep]) as progress:
        results = run_rows(plan, [*specs, *sweep], jobs, progress)
    rows, others = results[: len(specs)], results[len(specs) :]
    print_rows(console, rows)
    print_tiers(console, rows)
    print_storage(console, rows)
    print_linked(console, rows)
    print_latency(console, plan, rows)
    files.write(rows, others, f"{plan.workload.name} on {plan.composition.name}")
    wrong_bytes = sum(row.verified.wrong_bytes for row in results if row.verified is not None)
    if wrong_bytes:
        click.echo(f"error: {wrong_bytes:,} bytes were not what had been computed for their prefix", err=True)
    return WRONG_BYTES if wrong_bytes else 0


@contextmanager
def _progress_bar(plan: Plan, specs: Sequence[RowSpec]) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        size = len(plan.workload.requests)
        task = bar.add_task(f"replaying {len(specs)} rows", total=size * len(specs))
        yield lambda _, count: bar.advance(task, count)


@app.command(name="models")
@click.option("--page-size", type=int, help="Tokens a page.  [default: 64, or what the model needs]")
@click.option("--tp", type=int, default=1, show_default=True, help="Tensor-parallel ranks; the bytes are those of one.")
def models_command(page_size: int | None, tp: int) -> None:
    """List the built-in models with their components and what each keeps."""
    from rich.console import Console

    from unified_tree.components import composition_for, model_names
    from unified_tree.controllers.replay.model_table import model_table

    console = Console()
    if not console.is_terminal:
        console = Console(width=REPORT_COLUMNS)
    console.print(model_table([composition_for(name, page_size=page_size, tensor_parallel=tp) for name in model_names()]))
