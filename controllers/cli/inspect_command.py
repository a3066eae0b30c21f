"""The command `unified-tree inspect`."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from unified_tree.controllers.cli.diagnosis import age_said
from unified_tree.controllers.inspector.page_client import answer_of
from unified_tree.controllers.inspector.page_server import UNTOLD
from unified_tree.controllers.inspector.recording_page import recording_server
from unified_tree.controllers.shapes import COUNT, anything, list_of, number, record, text
from unified_tree.inputs.given_files import parse_json
from unified_tree.inputs.printable import printable
from unified_tree.terms.errors import ConfigurationError

LONGEST_ADDRESS = 1000
FIGURES = record({"nodes": COUNT, "leases": COUNT})
STATE = record({"figures": anything, "cache": anything}, {"age_s": number})
CACHE = record({"components": list_of(record({"name": text}))})


@click.command(name="inspect")
@click.argument("target")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to serve a recording's page.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port of a recording's page.  [default: a free one]")
@click.option("--token", envvar="UNIFIED_TREE_INSPECTOR_TOKEN", help="What opens the page.  [default: random beyond loopback]")
@click.option("--browser", "opens_browser", is_flag=True, help="Open the page in this machine's browser.")
def inspect_command(target: str, host: str, port: int, token: str | None, opens_browser: bool) -> None:
    """Open the inspector's page of a running cache, or of a recording.

    TARGET is the address that `Inspector.open` gave, or a file that `Inspector.record` or
    `unified-tree replay --inspect` wrote.
    """
    if target.startswith(("http://", "https://")):
        click.echo(live_summary(target, token))
        if opens_browser:
            webbrowser.open(target)
        return
    server, url = recording_server(Path(target), host, port, token)
    click.echo(f"the page of {target} is at {url} until this command is stopped")
    if opens_browser:
        webbrowser.open(url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


def live_summary(address: str, token: str | None) -> str:
    """One line about the cache behind an address. Raises ConfigurationError if no inspector answers there."""
    content = answer_of(address, "/api/state", token)
    try:
        state = STATE(parse_json(content), "it")
    except ConfigurationError as error:
        raise ConfigurationError(f"{printable(address)}: no inspector answers there: {error}") from error
    address = printable(address, LONGEST_ADDRESS)
    if not state["figures"]:
        return f"{address} answers; {UNTOLD}"
    figures = FIGURES(state["figures"], "figures")
    names = ", ".join(component["name"] for component in CACHE(state["cache"], "cache")["components"])
    said = age_said(state.get("age_s", 0.0))
    return f"{address} shows a cache of {names}: {figures['nodes']:,} nodes, {figures['leases']:,} leases{said}"
