"""The command `unified-tree inspect`."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import webbrowser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import click

from unified_tree.controllers.inspector.recording_page import recording_server
from unified_tree.errors import ConfigurationError

ANSWER_S = 5.0


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
    parts = urlsplit(address)
    request = urllib.request.Request(urlunsplit((parts.scheme, parts.netloc, "/api/state", parts.query, "")))
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            state: dict[str, Any] = json.load(answer)
        figures = state["figures"]
    except (OSError, ValueError, KeyError, urllib.error.URLError) as error:
        raise ConfigurationError(f"{address}: no inspector answers there: {error}") from error
    if not figures:
        return f"{address} has not been told anything yet: poll the cache"
    names = ", ".join(component["name"] for component in state["cache"]["components"])
    return f"{address} shows a cache of {names}: {figures['nodes']:,} nodes, {figures['leases']:,} leases"
