"""The commands of `unified-tree`. Whatever is wrong with the input ends in one line on stderr and exit code 2."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib import import_module
from typing import Any, NoReturn

import click

from unified_tree.build import is_compiled, why_interpreted
from unified_tree.components import composition_for, model_names
from unified_tree.components.equal_pages import for_vllm
from unified_tree.controllers.cli.arguments import Arguments
from unified_tree.controllers.cli.options import FILE, GIB_COUNT, OPTIONS, TOKENS, GivenPath, GroupedCommand, Number
from unified_tree.controllers.workbench.report.page import PageContent
from unified_tree.controllers.workbench.report.report import (
    answers,
    leaves_room,
    overload,
    print_answers,
    print_columns,
    print_header,
    print_rows,
)
from unified_tree.controllers.workbench.report.text_table import print_model, print_models, progress_bar, report_console
from unified_tree.controllers.workbench.runs.certificate import certified
from unified_tree.controllers.workbench.runs.plan import RowPlan, report_specs, sweep_specs
from unified_tree.controllers.workbench.runs.row import check_tiers, run_rows
from unified_tree.controllers.workbench.server.verified_pages import Verification
from unified_tree.controllers.workbench.sizing.changes import Changes
from unified_tree.inputs.printable import printable
from unified_tree.terms.errors import UnifiedTreeError

RATIO = Number(min=1e-6, max=1e6)
BUILD = "compiled" if is_compiled else f"interpreted: {why_interpreted()}".removesuffix(": ").replace("%", "%%")
WRONG_BYTES = 1
BAD_INPUT = 2
LONGEST_MESSAGE = 2000
LENGTHS_ONLY = (
    "The trace holds lengths alone, and not which prompts begin alike: the tables say what its requests take, and nothing on "
    "what a cache would bring."
)


LATER = ("inspect", "record", "size")
"""Commands of which each has a module of its own, that is imported when the command is asked for."""


class OneLineErrors(click.Group):
    """A group of commands that report an error in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, those of LATER included."""
        return sorted([*super().list_commands(ctx), *LATER])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by its name; None for no such."""
        if cmd_name in LATER:
            module = import_module(f"unified_tree.controllers.cli.{cmd_name}_command")
            command: click.Command = getattr(module, f"{cmd_name}_command")
            return command
        return super().get_command(ctx, cmd_name)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line; exits the process."""
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except click.ClickException as error:
            _complain(error.format_message())
        except UnifiedTreeError as error:
            _complain(str(error))
        except click.Abort:
            click.echo("aborted", err=True)
            sys.exit(130)
        sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> NoReturn:
    click.echo("error: " + printable(" ".join(message.split()), LONGEST_MESSAGE), err=True)
    sys.exit(BAD_INPUT)


OVERVIEW = """\
unified-tree says what a prefix cache does for a language model's traffic.

  unified-tree replay                     what hits, what could, what to change
  unified-tree replay trace.jsonl.gz --model gemma-3-27b --html report.html
  unified-tree size trace.jsonl.gz        how much memory, and how to split it

Without a trace a built-in workload of agents is replayed; record makes a trace.
Also: models, columns (what a report's figures mean), doctor and inspect (a
running cache), and sglang-check. Each command takes --help.
"""
"""The text of the command without arguments."""


@click.group(cls=OneLineErrors, invoke_without_command=True)
@click.version_option(package_name="unified-tree", message=f"%(prog)s, version %(version)s, {BUILD}")
@click.pass_context
def app(context: click.Context) -> None:
    """A prefix cache for hybrid language models."""
    if context.invoked_subcommand is None:
        click.echo(OVERVIEW, nl=False)


@app.command(name="replay", cls=GroupedCommand, params=[click.Argument(["trace"], required=False, type=FILE), *OPTIONS])
def replay_command(**given: Any) -> int:
    """Replay TRACE, or a built-in agent workload, and report what a cache of this size would do under each policy.

    TRACE is a file or directory in one of the formats that docs/traces.md lists, known by its content; or the word
    `multiturn`, for the built-in workload of clients that take turns in long conversations. With --host-gib evicted prefixes
    come back from host memory over a simulated bus: transfers of one direction go one after the other, and a request computes
    nothing before all of its load has arrived. With --storage what is on host goes on to a store, and what the store has of a
    prompt comes to host while the prompt waits; the engine is real, the time its calls take is modelled. No server is started.
    Every row keeps its pages apart, and a later replay of the same trace and model finds those of the row of the same name.

    A storage is memory, file:DIR, redis:HOST:PORT, redis:/SOCKET, mooncake:HOST:PORT, or an installed engine with its settings,
    NAME:a=b,c=d. LMCache needs no host memory before it: it is lmcache:HOST:PORT for a daemon on this machine,
    lmcache-in-process[:FILE.yaml] for one in the replay's own process, each also with settings,
    lmcache:daemon=HOST:PORT,c=d. With it what is computed is stored from device pages, and what is found of a prompt comes to
    device pages while it waits. It fills these pages itself, so they are real, of 64 bytes each as with --verify.
    """
    arguments = Arguments(given)
    files = arguments.files
    files.check()
    policies, page_counts = arguments.policies, arguments.page_counts
    with progress_bar("reading the workload", arguments.trace_bytes, then="building the workload") as advance:
        plan = arguments.plan(advance)
    if arguments.learns_pages:
        from unified_tree.controllers.cli.size_command import learned_split

        page_counts = learned_split(plan, jobs=arguments.jobs)
    specs = report_specs(policies, page_counts, plan)
    specs[0] = replace(specs[0], recording=files.inspect)
    one_by_one = plan.verification is Verification.FULL  # rows side by side would each take all of the memory
    jobs = arguments.jobs or (1 if one_by_one else os.cpu_count() or 1)
    sweep = sweep_specs(policies, plan) if files.draws else []
    check_tiers(RowPlan.of(plan, specs[0]), min(jobs, len(specs) + len(sweep)))
    console = report_console()
    row_count = len(specs) + len(sweep)
    what = f"replaying {len(plan.workload.requests):,} requests, {row_count} times"
    with progress_bar(what, len(plan.workload.requests) * row_count, then="bounding the best possible") as advance:
        results = run_rows(plan, [*specs, *sweep], jobs, lambda _, count: advance(count))
    rows, swept = certified(results[: len(specs)]), certified(results[len(specs) :])
    changes, modelled = Changes(plan, page_counts), []
    if plan.workload.tells_sharing and leaves_room(rows[0]) and not given["no_advice"]:
        with progress_bar("weighing other sizes", changes.pass_count, then="weighing larger sizes") as advance:
            modelled = changes.look(jobs, lambda: advance(1))
    said = answers(rows, swept, modelled) if plan.workload.tells_sharing else [LENGTHS_ONLY]
    said += filter(None, [overload(plan, rows[0])])
    print_answers(console, said)
    print_header(console, plan, page_counts)
    print_rows(console, plan, rows)
    files.write(
        PageContent(plan=plan, page_counts=page_counts, rows=rows, sweep=swept, answers=said, other_split=changes.split or {})
    )
    wrong_bytes = sum(row.verified.wrong_bytes for row in results if row.verified is not None)
    if wrong_bytes:
        click.echo(f"error: {wrong_bytes:,} bytes were not what had been computed for their prefix", err=True)
    return WRONG_BYTES if wrong_bytes else 0


@app.command(name="models")
@click.argument("model", required=False)
@click.option("--page-size", type=TOKENS, help="Tokens a page.  [default: 64, or what the model needs]")
@click.option("--tp", type=TOKENS, default=1, show_default=True, help="Tensor-parallel ranks; the bytes are those of one.")
@click.option("--ignore", multiple=True, help="A field of the file to read it without; several times.")
def models_command(model: str | None, page_size: int | None, tp: int, ignore: tuple[str, ...]) -> None:
    """List the built-in models with their components and what each keeps; or draw MODEL.

    MODEL is a built-in model, a folder, a config.json, or a file that describes a model's layers. Drawn are the stack of layers
    by kind, the bytes of a token and a state in several dtypes, and where a prompt can be resumed.
    """
    if model is None:
        models = [composition_for(name, page_size=page_size, tensor_parallel=tp) for name in model_names()]
        print_models(report_console(), models)
        return
    by_dtype = {
        label: composition_for(model, page_size=page_size, tensor_parallel=tp, kv_dtype=dtype, ignore=ignore)
        for label, dtype in (("as served", None), ("bf16", "bfloat16"), ("fp8", "fp8"))
    }
    served = by_dtype["as served"]
    vllm = for_vllm(
        served,
        lambda dtype: composition_for(model, page_size=page_size, tensor_parallel=tp, state_dtype=dtype, ignore=ignore),
    )
    print_model(report_console(), by_dtype, vllm)


@app.command(name="sglang-check")
@click.argument("model_path", metavar="MODEL", type=GivenPath())
@click.option("--device-gib", type=GIB_COUNT, help="Device memory of a rank for the cache.")
@click.option("--host-gib", type=GIB_COUNT, help="Host memory of a rank; needs --device-gib.")
@click.option("--page-size", type=click.IntRange(min=1, max=1 << 24), default=1, show_default=True, help="Tokens a page.")
@click.option("--tp", "tensor_parallel", type=TOKENS, default=1, show_default=True, help="Ranks; the bytes are those of one.")
@click.option("--kv-dtype", help="Of keys, values and latents.  [default: what the file says, else bfloat16]")
@click.option("--ignore", multiple=True, help="A field of the file to read it without; several times.")
@click.option("--eagle", "is_eagle", is_flag=True, help="Speculative decoding with EAGLE.")
@click.option("--extra-buffer", "has_extra_buffer", is_flag=True, help="States are saved in the extra buffer.")
@click.option("--swa-full-tokens-ratio", type=RATIO, default=0.8, show_default=True, help="SGLang's.")
@click.option("--mamba-full-memory-ratio", type=RATIO, default=0.9, show_default=True, help="SGLang's.")
def sglang_check_command(model_path: str, device_gib: float | None, host_gib: float | None, **given: Any) -> int:
    """Say what SGLang with `--radix-cache-backend unified_tree` would cache for a model.

    MODEL is a model's folder, its config.json, a name that `unified-tree models` lists, or a file that describes the layers
    that SGLang keeps. SGLang is not needed. The exit code is 1 if the model would be refused.
    """
    from unified_tree.controllers.cli.model_check import ModelCheck, print_check

    if host_gib is not None and device_gib is None:
        raise click.UsageError("--host-gib needs --device-gib: the host's memory is divided as the device's is")
    return print_check(ModelCheck.of(model_path, **given), device_gib=device_gib, host_gib=host_gib)


@app.command(name="doctor")
@click.argument("source")
@click.option("--token", envvar="UNIFIED_TREE_INSPECTOR_TOKEN", help="What opens the page.")
@click.option("--limit", type=click.IntRange(min=1, max=1000), default=5, show_default=True, help="Findings a cache.")
def doctor_command(source: str, token: str | None, limit: int) -> None:
    """Say what costs a cache its hits, and which setting changes that.

    SOURCE is a file of figures (`Figures.to_json`, or `replay --figures`), a recording of an inspector, or the address that
    `Inspector.open` gave.
    """
    from unified_tree.controllers.cli.diagnosis import diagnosis, read_figures

    click.echo("\n\n".join(diagnosis(figures, limit) for figures in read_figures(source, token)))


@app.command(name="columns")
def columns_command() -> None:
    """Say what each column of a report means, and its name in JSON and CSV."""
    print_columns(report_console())
