"""The page's process: reads what the cache's process tells, and serves it. It ends when the connection does."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.inspector.frames import FrameDecoder, encode
from unified_tree.controllers.inspector.page_server import PageServer
from unified_tree.controllers.inspector.picture import Picture
from unified_tree.controllers.inspector.prompt_walk import MAX_PROMPT_TOKENS

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOKED_S = 10.0
"""So long after somebody looked, snapshots go on."""
SNAPSHOT_PAUSE_S = 2.0
ANSWER_S = 10.0
NICENESS = 5
"""So the cache's process is not put aside when a frame wakes this one."""


class LivePage:
    """The page of a running cache.

    Args:
        connection: to the cache's process.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.picture = Picture()
        self._connection = connection
        self._looked_at = time.monotonic()  # the first snapshot is there before anybody looks
        self._answers: dict[int, dict[str, Any]] = {}
        self._answered = threading.Condition()
        self._question = 0
        self._sending = threading.Lock()
        self._asking = threading.Lock()

    def looked(self) -> None:
        """Somebody looks at the page."""
        self._looked_at = time.monotonic()

    def read(self) -> None:
        """Take in frames until the connection ends."""
        decoder = FrameDecoder()
        while data := self._connection.recv(1 << 20):
            for frame in decoder.feed(data):
                if frame.kind == "answer":
                    with self._answered:
                        self._answers[frame.fields["question"]] = frame.fields["answer"]
                        self._answered.notify_all()
                else:
                    self.picture.feed(frame)
                    if self.picture.stopped is not None:
                        with self._answered:
                            self._answered.notify_all()
        self.picture.is_over = True

    def keep_asking(self) -> None:
        """Ask for snapshots and leases while somebody looks."""
        while True:
            if time.monotonic() - self._looked_at < LOOKED_S:
                if self.picture.progress is None:
                    self._send(encode("tree", {}))
                self._send(encode("leases", {}))
            time.sleep(SNAPSHOT_PAUSE_S)

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Have a prompt walked in the cache, one at a time; waits for the answer."""
        tokens = question.get("tokens", [])
        is_bigram = question.get("bigram", False)
        left_out = max(0, len(tokens) - is_bigram - MAX_PROMPT_TOKENS)
        fields = {name: value for name, value in question.items() if name != "tokens"}
        if not self._asking.acquire(timeout=ANSWER_S):
            return {"error": f"other prompts are being walked, and have been for {ANSWER_S:g} s"}
        try:
            answer = self._ask(fields, elements(tokens[: len(tokens) - left_out], is_bigram=is_bigram))
            return {**answer, "left_out": left_out} if left_out and "error" not in answer else answer
        finally:
            self._asking.release()

    def _ask(self, fields: dict[str, Any], body: bytes) -> dict[str, Any]:
        with self._answered:
            self._answers.clear()  # of those that came too late
            self._question += 1
            number = self._question
        self._send(encode("walk", {"question": number, **fields}, body))
        with self._answered:
            if not self._answered.wait_for(lambda: number in self._answers or self.picture.stopped is not None, ANSWER_S):
                return {"error": f"the cache has not answered for {ANSWER_S:g} s: it has not been polled"}
            return self._answers.pop(number, {"error": "the cache answers no more"})

    def _send(self, frame: bytes) -> None:
        with self._sending:
            self._connection.sendall(frame)


def elements(tokens: list[int], *, is_bigram: bool) -> bytes:
    """Tokens as the elements of a key: so the cache has nothing to do with them but to look."""
    if not is_bigram:
        return array("q", tokens).tobytes()
    pairs = array("q", bytes(16 * max(len(tokens) - 1, 0)))
    pairs[::2], pairs[1::2] = array("q", tokens[:-1]), array("q", tokens[1:])
    return pairs.tobytes()


def main() -> None:
    """Serve on the listening socket given by its number, and talk through the connection given by its."""
    listener, connection = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    os.nice(NICENESS)
    token = json.loads(os.environ.pop("UNIFIED_TREE_INSPECTOR"))["token"]
    page = LivePage(connection)
    server = PageServer(listener, page.picture, token, page.ask, page.looked)
    for work in (server.serve_forever, page.keep_asking):
        threading.Thread(target=work, daemon=True).start()
    with suppress(KeyboardInterrupt, ConnectionError):
        page.read()
    os._exit(0)


if __name__ == "__main__":
    main()
