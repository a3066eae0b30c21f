"""The page over HTTP: files, and the picture as JSON. It changes nothing."""

from __future__ import annotations

import hmac
import json
import re
import threading
import time
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from unified_tree.controllers.doctor.findings import findings
from unified_tree.controllers.inspector.page_process import is_loopback
from unified_tree.controllers.inspector.picture import figures_of
from unified_tree.controllers.inspector.tree_picture import EVERYTHING, TIERS, flame, run_details
from unified_tree.inputs.given_files import parse_json

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from unified_tree.controllers.inspector.picture import Picture

    Ask = Callable[[Mapping[str, Any]], dict[str, Any]]

KINDS = {"html": "text/html; charset=utf-8", "js": "text/javascript", "css": "text/css", "LICENSE": "text/plain"}
MAX_BODY_BYTES = 16 << 20
MAX_LEVELS = 64
MAX_NAMESPACE = 1 << 16
"""Characters of a namespace that can be asked for."""
SHOWN_FINDINGS = 3
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class PageServer(ThreadingHTTPServer):
    """Serves one picture.

    Args:
        listener: a listening socket.
        token: what a request must bring; None for nothing, on loopback.
        ask: passes a prompt on to be walked, and waits for the answer.
        looked: called when somebody looks.
    """

    daemon_threads = True

    def __init__(
        self, listener: socket.socket, picture: Picture, token: str | None, ask: Ask, looked: Callable[[], None]
    ) -> None:
        super().__init__(listener.getsockname()[:2], PageHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_address = listener.getsockname()[:2]
        self.picture = picture
        self.token = token
        self.ask = ask
        self.looked = looked
        self.walking = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes its connection is no error."""


UNTOLD = "the cache has told nothing yet: it does so in its first step, or with `poll()`"


class BadQuestionError(Exception):
    """What was asked cannot be answered."""


class PageHandler(BaseHTTPRequestHandler):
    """One connection."""

    server: PageServer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds; a connection on which nothing comes is closed

    def do_GET(self) -> None:
        """Files and what the picture shows."""
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        if not self._is_allowed(url.path, query):
            return
        if not url.path.startswith("/api/"):
            self._send_file(url.path.lstrip("/") or "index.html")
            return
        self.server.looked()
        try:
            answer = self._answer(url.path.removeprefix("/api/"), query)
        except (BadQuestionError, ValueError) as error:
            self._send(400, {"error": str(error)})
            return
        self._send(404 if answer is None else 200, {"error": "there is no such thing"} if answer is None else answer)

    def do_POST(self) -> None:
        """A prompt to be walked. POST since prompts are long; nothing is changed by it."""
        url = urlsplit(self.path)
        if not self._is_allowed(url.path, {name: values[0] for name, values in parse_qs(url.query).items()}):
            return
        given = self.headers.get("Content-Length") or ""
        length = int(given) if given.isdecimal() and len(given) < 12 else 0
        is_json = self.headers.get("Content-Type") == "application/json"  # which no form of another site can send
        if url.path != "/api/walk" or not is_json or not 0 < length <= MAX_BODY_BYTES:
            self.close_connection = True
            self._send(400, {"error": f"a prompt is posted to /api/walk, as JSON of at most {MAX_BODY_BYTES:,} bytes"})
            return
        try:
            content = self.rfile.read(length)
            with self.server.walking:  # prompts are long: one at a time is enough
                self._send(200, self.server.ask(_question(parse_json(content))))
        except (BadQuestionError, ValueError) as error:
            self._send(400, {"error": str(error)})

    def _answer(self, name: str, query: Mapping[str, str]) -> Any:
        picture = self.server.picture
        if name == "state":
            found = findings(figures_of(picture), SHOWN_FINDINGS) if picture.figures else []
            return {**picture.state(), "findings": [asdict(finding) for finding in found]}
        if name == "doctor":
            if not picture.figures:
                raise BadQuestionError(UNTOLD)
            return figures_of(picture).record()
        if name == "time":
            if "namespace" in query or "others" in query:  # these have no name on the page
                return picture.over_time_of(query.get("namespace"))
            return picture.over_time(by_namespace=query.get("by") == "namespace")
        if name == "events":
            return picture.events(_number(query, "after", 0))
        if name == "requests":
            return picture.requests()
        if name == "leases":
            return picture.leases
        if name in ("flame", "run", "node") and picture.tree is not None:
            return self._of_tree(name, query)
        return None

    def _of_tree(self, name: str, query: Mapping[str, str]) -> Any:
        tree = self.server.picture.tree
        assert tree is not None
        if name == "node":
            return {"run": tree.run_of_node(_number(query, "id"))}
        run = _number(query, "run", EVERYTHING)
        if not EVERYTHING <= run < len(tree.parent):
            raise BadQuestionError(f"there is no run {run}")
        if name == "run":
            return run_details(tree, run)
        tier = query.get("tier", "both")
        if tier not in TIERS:
            raise BadQuestionError(f"there is no tier {tier!r}")
        began = time.perf_counter()
        shown = flame(tree, run, tier, _number(query, "width", 1200), min(_number(query, "levels", 24), MAX_LEVELS))
        return {**shown, "took_ms": round(1000 * (time.perf_counter() - began), 2)}

    def _is_allowed(self, path: str, query: Mapping[str, str]) -> bool:
        """Whether a request may be answered. One that may not is refused here.

        A page on loopback answers only to names of loopback, so that no other site can be made to point here.
        """
        token = self.server.token
        if token is None:
            host = (urlsplit(f"//{self.headers.get('Host', '')}").hostname) or ""
            if not is_loopback(host):
                self._refuse(403, f"this page is for names of loopback, not for {host!r}")
                return False
            return True
        if path.startswith("/page/"):
            return True  # scripts and styles, the same for everybody
        given = query.get("token") or unquote(self.headers.get("Authorization", "").removeprefix("Bearer "))
        if hmac.compare_digest(given.encode("utf-8", "surrogatepass"), token.encode("utf-8", "surrogatepass")):
            return True
        self._refuse(401, "a token is needed: /?token=...")
        return False

    def _refuse(self, status: int, why: str) -> None:
        self.close_connection = True
        self._send(status, {"error": why})

    def _send_file(self, name: str) -> None:
        name = name.removeprefix("page/")
        kind = KINDS.get(name.rpartition(".")[2])
        file = files("unified_tree.controllers.inspector") / "page" / name
        if kind is None or "/" in name or not file.is_file():
            self._send(404, {"error": "there is no such file"})
            return
        self._write(200, kind, file.read_bytes())

    def _send(self, status: int, answer: Any) -> None:
        self._write(status, "application/json", json.dumps(answer, separators=(",", ":")).encode())

    def _write(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        """The Server header: without Python's version."""
        return "unified-tree"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's
        """Nothing: an engine's terminal is not for this."""


def _number(query: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A number of a query. Raises BadQuestionError for one that is missing, or none."""
    given = query.get(name)
    if given is None and default is not None:
        return default
    if given is None or not re.fullmatch("-?[0-9]{1,18}", given):
        raise BadQuestionError(f"`{name}` is a number")
    return int(given)


def _question(given: Any) -> dict[str, Any]:
    """A question from what was posted: the number of a request, or tokens. Raises BadQuestionError."""
    if not isinstance(given, dict):
        raise BadQuestionError("a prompt is an object with `tokens`, or with `request`")
    request = given.get("request")
    if type(request) is int and 0 <= request < 1 << 53:
        return {"request": request}
    tokens, namespace, bigram = given.get("tokens"), given.get("namespace", ""), given.get("bigram", False)
    if not isinstance(tokens, list) or not all(type(token) is int and 0 <= token < 1 << 63 for token in tokens):
        raise BadQuestionError("`tokens` is a list of token ids")
    if not isinstance(namespace, str) or not isinstance(bigram, bool) or len(namespace) > MAX_NAMESPACE:
        raise BadQuestionError("`namespace` is a string, and `bigram` true or false")
    return {"tokens": tokens, "namespace": namespace, "bigram": bigram}
