"""The commands `unified-tree record …`."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unified_tree.controllers.cli.options import BLOCK, FILE, Number
from unified_tree.controllers.workbench.recorder.block_hashes import DEFAULT_BLOCK_TOKENS, BlockHasher
from unified_tree.controllers.workbench.recorder.exchanges import ExchangeReader
from unified_tree.controllers.workbench.recorder.prompt_tokens import PromptTokens
from unified_tree.controllers.workbench.recorder.recorder import Recorder
from unified_tree.controllers.workbench.recorder.trace_writer import (
    DEFAULT_FILE_BYTES,
    DEFAULT_TOTAL_BYTES,
    MIB,
    TraceFiles,
    TraceWriter,
)
from unified_tree.inputs.given_files import open_given
from unified_tree.inputs.printable import printable
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Command = Callable[..., Any]

MIBS = click.IntRange(min=1, max=1 << 30)
PORT = click.IntRange(0, 65535)
DEFAULT_PORT = 8100
STDIN = "-"
APPROXIMATE = "no --tokenizer: prompts that come as text are counted at four bytes a token"


def output_options(command: Command) -> Command:
    """The options of every recording, beneath those of its source."""
    options = (
        click.option("--out", type=FILE, required=True, help="The folder of the trace, for this recording alone."),
        click.option("--block-size", type=BLOCK, default=DEFAULT_BLOCK_TOKENS, show_default=True, help="Tokens a block."),
        click.option(
            "--salt",
            default="",
            envvar="UNIFIED_TREE_RECORD_SALT",
            help="Key of the hashes; better in UNIFIED_TREE_RECORD_SALT.",
        ),
        click.option("--file-mib", type=MIBS, default=DEFAULT_FILE_BYTES // MIB, show_default=True, help="A file has no more."),
        click.option(
            "--total-mib",
            type=MIBS,
            default=DEFAULT_TOTAL_BYTES // MIB,
            show_default=True,
            help="All files have no more; the oldest go.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def text_options(command: Command) -> Command:
    """The options of a source whose prompts may be text."""
    command = click.option("--chat-template", type=FILE, help="A Jinja file.  [default: the one in the model's folder]")(
        command
    )
    return click.option("--tokenizer", type=FILE, help="The model's folder, or its tokenizer.json; for prompts that are text.")(
        command
    )


@click.group(name="record")
def record_command() -> None:
    """Record a trace of your own traffic: hashes of blocks and lengths, no text and no token ids.

    \b
    unified-tree record proxy --to http://127.0.0.1:30000 --out traces
    unified-tree record log sglang.log --out traces
    unified-tree record events tcp://127.0.0.1:5557 --out traces
    unified-tree replay traces --model qwen3-32b
    """


@record_command.command(name="proxy")
@click.option("--to", "server", required=True, help="The server, http://HOST:PORT.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where clients find the proxy.")
@click.option("--port", type=PORT, default=DEFAULT_PORT, show_default=True, help="Likewise; 0 for a free one.")
@text_options
@click.option("--base-model", help="The name of the model itself; prompts to other names are kept apart, as an adapter's.")
@output_options
def proxy_command(server: str, host: str, port: int, base_model: str | None, **given: Any) -> None:
    """Stand before an OpenAI-compatible server, pass everything on as it is, and record.

    Recorded are chat/completions, completions and SGLang's /generate. Whatever the recording meets, the clients and the server
    notice nothing: what cannot be recorded is counted, and said at the end.
    """
    from unified_tree.controllers.workbench.recorder.proxy import RecordingProxy, server_address

    server_address(server)
    prompts = _prompts(given)
    with _writer(given) as writer:
        recorder = Recorder(writer)
        proxy = RecordingProxy(server, recorder, ExchangeReader(prompts, base_model))
        try:
            asyncio.run(_serve(proxy, host, port, server))
        finally:
            recorder.close()


async def _serve(proxy: Any, host: str, port: int, server: str) -> None:
    try:
        address = await proxy.start(host, port)
    except OSError as error:
        raise ConfigurationError(f"{host}:{port} cannot be listened on: {error.strerror or error}") from error
    click.echo(f"{address} passes on to {printable(server)}, and records until this command is stopped", err=True)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    await proxy.stop()


@record_command.command(name="log")
@click.argument("log", type=FILE)
@text_options
@output_options
def log_command(log: Path, **given: Any) -> None:
    """Make a trace of a request log of SGLang or vLLM; LOG may be - for what is piped in.

    SGLang: --log-requests --log-requests-level 3. vLLM: --enable-log-requests with VLLM_LOGGING_LEVEL=DEBUG, and
    --enable-log-outputs for the lengths of answers.
    """
    from unified_tree.controllers.workbench.recorder.request_logs import LogReader, lines_of

    prompts = _prompts(given)
    with _writer(given) as writer:
        reader = LogReader(prompts, writer.lose)
        try:
            with sys.stdin.buffer if str(log) == STDIN else open_given(log) as stream, _stopped_by_signals():
                for request in reader.read(lines_of(stream)):
                    writer.write(request)
        except OSError as error:
            raise ConfigurationError(f"{log}: cannot be read: {error.strerror or error}") from error
        except KeyboardInterrupt:
            pass
        for request in reader.end():
            writer.write(request)
        if not reader.found:
            raise ConfigurationError(
                f"{log}: has no line of a request: start SGLang with --log-requests --log-requests-level 3, or vLLM with "
                "--enable-log-requests and VLLM_LOGGING_LEVEL=DEBUG"
            )


@record_command.command(name="events")
@click.argument("source")
@click.option(
    "--quiet-s", type=Number(min=0.001, max=1e6), default=5.0, show_default=True, help="A request ends after so long."
)
@click.option("--topic", default="", help="The beginning of the topics to take.  [default: all]")
@output_options
def events_command(source: str, quiet_s: float, topic: str, **given: Any) -> None:
    """Make a trace of the KV events of SGLang or vLLM: of what was computed, for prompts that hit wholly leave none.

    SOURCE is the address of their publisher, tcp://HOST:PORT, or a file of batches, msgpack or JSON lines.
    """
    from unified_tree.controllers.workbench.recorder.kv_events import EventTrace
    from unified_tree.controllers.workbench.traces.trace_files import read_records

    with _writer(given) as writer:
        trace = EventTrace(writer.hasher, writer.lose, quiet_s=quiet_s)
        is_file = "://" not in source
        batches = (each.fields for each in read_records(Path(source))) if is_file else _published(source, topic, writer)
        try:
            with _stopped_by_signals():
                for batch in batches:
                    for line in trace.batch(batch):
                        writer.write_line(line)
        except KeyboardInterrupt:
            pass
        for line in trace.end():
            writer.write_line(line)


def _published(source: str, topic: str, writer: TraceWriter) -> Iterator[Any]:
    from unified_tree.controllers.workbench.recorder.kv_events import EventSubscription

    subscription = EventSubscription(source, writer.lose, topic)
    click.echo(f"{printable(source)} is recorded until this command is stopped", err=True)
    try:
        while True:
            batch = subscription.take()
            if batch is not None:
                yield batch
    finally:
        subscription.close()


def _prompts(given: dict[str, Any]) -> PromptTokens:
    tokenizer, template = given.pop("tokenizer"), given.pop("chat_template")
    if tokenizer is None:
        click.echo(APPROXIMATE, err=True)
    return PromptTokens.open(tokenizer, template)


@contextmanager
def _writer(given: dict[str, Any]) -> Iterator[TraceWriter]:
    """The writer of a recording; at the end it is said what was recorded."""
    files = TraceFiles(given["out"], file_bytes=given["file_mib"] * MIB, total_bytes=given["total_mib"] * MIB)
    writer = TraceWriter(BlockHasher(given["block_size"], given["salt"].encode("utf-8", "surrogateescape")), files)
    try:
        files.open()
    except OSError as error:
        raise ConfigurationError(f"{given['out']}: cannot be recorded into: {error.strerror or error}") from error
    try:
        yield writer
    finally:
        writer.close()
    click.echo(writer.summary(), err=True)


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """SIGTERM ends the work as Ctrl-C does, so that what is known is written."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
