"""Starting the process that serves the page."""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import socket
import subprocess
import sys
from urllib.parse import quote

from unified_tree.terms.errors import ConfigurationError

MODULE = "unified_tree.controllers.inspector.page_main"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def token_for(host: str, token: str | None) -> str | None:
    """The token a page at this address asks for: the given one; beyond loopback a random one if none is given.

    Raises ConfigurationError for one that is too easy to guess.
    """
    if token is not None and len(token) < 16:
        raise ConfigurationError("a token of the inspector has 16 characters at least")
    if token is None and not is_loopback(host):
        return secrets.token_urlsafe(24)
    return token


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ConfigurationError if there is none to be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(f"the inspector cannot listen on {host}:{port}: {error}") from error
    return listener


def url_of(listener: socket.socket, token: str | None) -> str:
    """Where its page is."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + ("" if token is None else f"?token={quote(token, safe='')}")


def start_page_process(listener: socket.socket, token: str | None) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the page's process with a listening socket. It ends when the connection does.

    Returns it and the connection. The token goes by the environment, which other users cannot read.
    """
    ours, theirs = socket.socketpair()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    environment["UNIFIED_TREE_INSPECTOR"] = json.dumps({"token": token})
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(listener.fileno()), str(theirs.fileno())],
            pass_fds=(listener.fileno(), theirs.fileno()),
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        ours.close()
        raise ConfigurationError(f"the inspector's process cannot be started: {error}") from error
    finally:
        theirs.close()
        listener.close()
    return process, ours
