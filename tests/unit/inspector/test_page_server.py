"""The page changes nothing, and answers only to whom it should."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from waiting import PATIENCE_S

from unified_tree.controllers.inspector.page_process import is_loopback, listen, token_for
from unified_tree.controllers.inspector.page_server import PageServer
from unified_tree.controllers.inspector.picture import Picture
from unified_tree.terms.errors import ConfigurationError

TOKEN = "a token of sixteen or more"
WRONG_HOSTS = ["example.com", "192.168.0.1", "evil.localhost.example", ""]


@contextmanager
def serving(token: str | None = None) -> Iterator[int]:
    listener = listen("127.0.0.1", 0)
    server = PageServer(listener, Picture(), token, lambda question: {"asked": dict(question)}, lambda: None)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(port: int, path: str, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        told = json.loads(text) if answer.headers["Content-Type"] == "application/json" else text.decode()
        return answer.status, told, dict(answer.headers)
    finally:
        connection.close()


def test_files_and_the_state() -> None:
    with serving() as port:
        status, page, headers = ask(port, "/")
        assert status == 200 and "unified_tree inspector" in page
        assert "default-src 'self'" in headers["Content-Security-Policy"] and "unified-tree" in headers["Server"]
        assert ask(port, "/page/app.js")[0] == 200
        assert "MIT" in ask(port, "/page/uPlot.LICENSE")[1]
        assert ask(port, "/api/state")[1]["tree"] is None
        assert ask(port, "/api/flame")[0] == 404, "there is no snapshot yet"


@pytest.mark.parametrize(
    "path", ["/page/../page_server.py", "/page/%2e%2e/frames.py", "/etc/passwd", "/page/none.js", "/api/x"]
)
def test_nothing_else_is_served(path: str) -> None:
    with serving() as port:
        assert ask(port, path)[0] == 404


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
def test_no_method_changes_anything(method: str) -> None:
    with serving() as port:
        assert ask(port, "/api/state", method)[0] == 501


@pytest.mark.parametrize("host", WRONG_HOSTS)
def test_a_page_on_loopback_has_no_other_name(host: str) -> None:
    with serving() as port:
        assert ask(port, "/api/state", Host=host)[0] == 403
        assert ask(port, "/api/state", Host=f"localhost:{port}")[0] == 200
        assert ask(port, "/api/state", Host=f"[::1]:{port}")[0] == 200


def test_a_token_is_asked_for() -> None:
    with serving(TOKEN) as port:
        assert ask(port, "/page/app.js")[0] == 200, "scripts tell nothing"
        for path in ("/", "/api/state", "/api/leases"):
            assert ask(port, path)[0] == 401
            assert ask(port, f"{path}?token=another")[0] == 401
            assert ask(port, path, Authorization=f"Bearer {TOKEN}")[0] == 200
        assert ask(port, "/?token=" + TOKEN.replace(" ", "%20"))[0] == 200
        body = {"tokens": [1]}
        assert ask(port, "/api/walk", "POST", body, **{"Content-Type": "application/json"})[0] == 401


def test_beyond_loopback_there_is_always_a_token() -> None:
    assert token_for("127.0.0.1", None) is None
    assert token_for("::1", None) is None
    assert len(token_for("0.0.0.0", None) or "") >= 32
    assert token_for("0.0.0.0", TOKEN) == TOKEN
    with pytest.raises(ConfigurationError, match="16 characters"):
        token_for("127.0.0.1", "short")
    assert is_loopback("localhost") and is_loopback("127.4.5.6")
    assert not is_loopback("0.0.0.0") and not is_loopback("example.com")


def test_an_address_that_cannot_be_had() -> None:
    with serving() as port, pytest.raises(ConfigurationError, match="cannot listen"):
        listen("127.0.0.1", port)


def test_prompts_are_passed_on_as_json_alone() -> None:
    json_type = {"Content-Type": "application/json"}
    with serving() as port:
        question = {"tokens": [1, 2], "namespace": "shop"}
        assert ask(port, "/api/walk", "POST", question, **json_type)[1] == {"asked": {**question, "bigram": False}}
        assert ask(port, "/api/walk", "POST", {"request": 4}, **json_type)[1] == {"asked": {"request": 4}}
        assert ask(port, "/api/walk", "POST", question, **{"Content-Type": "text/plain"})[0] == 400
        assert ask(port, "/api/state", "POST", question, **json_type)[0] == 400
        for wrong in (
            {"tokens": [-1]},
            {"tokens": "1 2"},
            {"tokens": [1.5]},
            {"tokens": [True]},
            [1],
            {"tokens": [1], "namespace": 2},
        ):
            status, told, _ = ask(port, "/api/walk", "POST", wrong, **json_type)
            assert status == 400 and told["error"]


def test_hits_and_misses_over_time_of_all_or_of_one_namespace() -> None:
    with serving() as port:
        assert ask(port, "/api/time")[1]["labels"][0] == "hit on device"
        for query in ("namespace=shop", "namespace=", "others="):
            assert ask(port, f"/api/time?{query}")[1]["labels"][0] == "hit", "the namespace without a name is one, too"
        assert ask(port, "/api/time?by=namespace")[1]["labels"] == []


def test_a_bad_query_is_told() -> None:
    with serving() as port:
        assert ask(port, "/api/events?after=x")[0] == 400
