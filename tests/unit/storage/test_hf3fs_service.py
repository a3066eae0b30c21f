"""The metadata service as a process: who may ask, what it refuses, and what is left after it was killed."""

from __future__ import annotations

import json
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hf3fs_service
import pytest
from hf3fs_pages import CAPACITY_BYTES, opened, settings
from hf3fs_service import MetadataService
from numbered_pages import FULL, SIZE, empty, got, keys, put, until_put, value
from waiting import PATIENCE_S, PROGRAM_S, wait_until

from unified_tree.controllers.storage import CheckedStorage, Outcome
from unified_tree.controllers.storage.hf3fs import Hf3fsSettings, Hf3fsStorage
from unified_tree.controllers.storage.hf3fs.metadata_client import MetadataAwayError, MetadataClient
from unified_tree.controllers.storage.hf3fs.metadata_wire import BUSY, GONE, NOWHERE, PRESENT
from unified_tree.terms.errors import ConfigurationError, StorageError

hf3fs_service.skip_unless_it_runs()


def asked(url: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=PATIENCE_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_it_listens_on_loopback_and_a_token_keeps_strangers_out(tmp_path: Path) -> None:
    with MetadataService(tmp_path / "state", token="of all of us") as service:
        assert service.url.startswith("http://127.0.0.1:")
        assert asked(f"{service.url}/health") == (200, {"status": "ok"})
        for said in ("", "Bearer of all of u", "of all of us"):
            assert asked(f"{service.url}/v1/stats", Authorization=said)[0] == 401
            assert asked(f"{service.url}/v1/open", b"{}", Authorization=said)[0] == 401
        with pytest.raises(StorageError, match="the token is missing or another"):
            opened(service, tmp_path)
        engine = opened(service, tmp_path, token="of all of us")
        assert put(engine, 1) == [Outcome.DONE]
        engine.close()
        assert "of all of us" not in Path(f"/proc/{service.process.pid}/cmdline").read_text()


NAMESPACE = {"namespace": "f", "format": "x", "stride_bytes": 512, "page_count": 3}


def rank_said(**other: Any) -> bytes:
    good = {"rank": "x", "namespaces": [NAMESPACE], "seen": 0, "may_replace": True}
    return json.dumps(good | other).encode()


def test_what_is_no_request_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with MetadataService(tmp_path / "state") as service:
        engine = opened(service, tmp_path)
        put(engine, 1)
        epoch = engine._access.rank.epoch
        where = f"rank=r0&epoch={epoch}&namespace=full"
        one = struct.pack("<II", 0, 1) + keys(1)[0]
        for path, body, status in (
            ("open", b"", 400),
            ("open", b"[]", 400),
            ("open", b'{"rank": "x", "namespaces": [], "seen": 0, "may_replace": true}', 400),
            ("open", b'{"rank": "x", "namespaces": [{"namespace": "f"}], "seen": 0, "may_replace": true}', 400),
            ("open", rank_said(may_replace="no"), 400),
            ("open", rank_said(may_replace=1), 400),
            ("open", rank_said(seen="0"), 400),
            ("open", rank_said(seen=0.5), 400),
            ("open", rank_said(seen=True), 400),
            ("open", rank_said(rank=7), 400),
            ("open", rank_said(namespaces={}), 400),
            ("open", rank_said(namespaces=[NAMESPACE, NAMESPACE]), 400),
            ("open", rank_said(namespaces=[NAMESPACE | {"page_count": True}]), 400),
            ("open", rank_said(namespaces=[NAMESPACE | {"page_count": -1}]), 400),
            ("open", rank_said(namespaces=[NAMESPACE | {"pages": 1}]), 400),
            ("open", rank_said(more=1), 400),
            ("clear", b'{"rank": "r0"}', 400),
            ("clear", json.dumps({"rank": "r0", "epoch": float(epoch), "namespace": "full"}).encode(), 400),
            (f"confirm?{where}&lease=1", one + b"\x07", 400),
            (f"lookup?{where}", b"", 400),
            (f"lookup?{where}", one[:-1], 400),
            (f"lookup?{where}", one + b"x", 400),
            (f"lookup?{where}", struct.pack("<II", 0, 1 << 31), 400),
            ("lookup?rank=r0&epoch=-1&namespace=full", one, 400),
            ("lookup?rank=r0&epoch=1&namespace=full", one, 410),
            (f"lookup?rank=r9&epoch={epoch}&namespace=full", one, 410),
            (f"delete?rank=r0&epoch={epoch}&namespace=other", one, 404),
            (f"confirm?{where}", one + b"\x01", 400),
            ("nothing", b"", 404),
        ):
            try:
                answer = asked(f"{service.url}/v1/{path}", body)
            except ValueError:  # the framework's own words for a path that there is not
                answer = (404, None)
            assert answer[0] == status, path
        assert got(engine, 1) == [Outcome.DONE]
        client, twice = engine._client, 2 * keys(2)
        lease, pages = client.reserve(epoch, "full", twice)
        assert pages[0] >= 0 and pages[1] == BUSY
        assert client.confirm(epoch, "full", lease, twice, b"\x01\x01") == [PRESENT, GONE]
        client.ended(client.read(epoch, "full", twice)[0])
        client.delete(epoch, "full", twice)
        assert client.lookup(epoch, "full", twice) == [NOWHERE] * 2
        gauges = service.stats()["ranks"]["r0"]["full"]
        assert gauges["held"] == 1 and gauges["free"] == gauges["pages"] - 1
        engine.close()


def test_a_file_that_may_be_somebody_elses_is_left_as_it_is(tmp_path: Path) -> None:
    with MetadataService(tmp_path / "state") as service:
        theirs = tmp_path / "r0.pages"
        theirs.write_bytes(b"a thesis" * 1000)
        with pytest.raises(StorageError, match="holds something that is not ours"):
            opened(service, tmp_path)
        assert theirs.read_bytes() == b"a thesis" * 1000
        theirs.rename(tmp_path / "thesis")
        theirs.symlink_to(tmp_path / "thesis")
        with pytest.raises(StorageError, match="cannot be opened"):
            opened(service, tmp_path)
        theirs.unlink()
        theirs.mkdir()
        with pytest.raises(StorageError, match="cannot be opened"):
            opened(service, tmp_path)
        theirs.rmdir()
        engine = opened(service, tmp_path)
        put(engine, 1)
        engine.close()
        engine = opened(service, tmp_path, capacity_bytes=2 * CAPACITY_BYTES)
        engine.close()
    with MetadataService(tmp_path / "another state") as service:
        opened(service, tmp_path).close()


def test_a_directory_beside_the_mount_is_refused(tmp_path: Path) -> None:
    with MetadataService(tmp_path / "state") as service, pytest.raises(StorageError, match="is not on the mount /proc"):
        opened(service, tmp_path, mount="/proc")


def test_two_services_do_not_share_a_state(tmp_path: Path) -> None:
    with MetadataService(tmp_path / "state") as first:
        with pytest.raises(AssertionError, match="does not come up"):
            MetadataService(tmp_path / "state")
        first.stop()
        MetadataService(tmp_path / "state").stop()


def test_a_damaged_state_is_not_passed_over(tmp_path: Path) -> None:
    with MetadataService(tmp_path / "state") as service:
        engine = opened(service, tmp_path)
        put(engine, *range(10))
        engine.close()
        service.stop()
    database = tmp_path / "state" / "metadata"
    whole = database.read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index(keys(5)[0]) + 7] ^= 1
    for damaged in (b"", b"something else", b'{"r0": 3}', whole[: len(whole) // 2], bytes(flipped)):
        database.write_bytes(damaged)
        refused_to_start(tmp_path / "state")
        assert database.read_bytes() == damaged
    database.write_bytes(whole)
    MetadataService(tmp_path / "state").stop()


def refused_to_start(state: Path) -> None:
    module = "unified_tree.controllers.storage.hf3fs.metadata.metadata_service"
    words = [sys.executable, "-m", module, "--port", "0", "--state", str(state)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert done.returncode == 1 and "move it away" in done.stderr


def test_what_cannot_be_written_is_refused_and_nothing_is_wrong_later(tmp_path: Path) -> None:
    with MetadataService(tmp_path / "state", "--checkpoint-s", "100000") as service:  # for one begins the log anew
        engine = opened(service, tmp_path)
        put(engine, 1)
        limit = "import resource,sys; resource.prlimit(int(sys.argv[1]), resource.RLIMIT_FSIZE, (int(sys.argv[2]), -1))"
        before = (tmp_path / "state" / "metadata-wal").stat().st_size
        subprocess.run([sys.executable, "-c", limit, str(service.process.pid), str(before)], check=True, timeout=PROGRAM_S)
        assert put(engine, *range(10, 20)).count(Outcome.DONE) == 0
        assert service.stats()["is_behind"]
        subprocess.run([sys.executable, "-c", limit, str(service.process.pid), "-1"], check=True, timeout=PROGRAM_S)
        until_put(engine, 30)
        assert not service.stats()["is_behind"]
        service.kill()
        service.start()
        wait_until(lambda: got(engine, 1, 30) == [Outcome.DONE] * 2, "the pages are not found again")
        engine.close()


WRITER = """
import sys
from hashlib import sha256
from random import Random
from unified_tree.controllers.storage import CheckedStorage, StoredPool
from unified_tree.controllers.storage.hf3fs import open_hf3fs
pool = StoredPool(name="full", format_digest=sha256(b"full").digest(), value_bytes=65536)
storage = CheckedStorage(open_hf3fs([pool], metadata=sys.argv[1], directory=sys.argv[2], rank="r0", io="posix",
    capacity_bytes=40 * 65536, request_timeout_s=120, io_timeout_s=120, retry_pause_s=0.05))
choose = Random(int(sys.argv[3]))
print("ready", flush=True)
while True:
    numbers = choose.sample(range(80), 8)
    pages = [memoryview(bytearray(Random(n).randbytes(65536))) for n in numbers]
    storage.put("full", [sha256(str(n).encode()).digest() for n in numbers], pages)
"""


def test_service_and_writers_killed_at_any_moment_leave_no_wrong_page(tmp_path: Path) -> None:
    choose = random.Random(9)
    with MetadataService(tmp_path / "state") as service, ExitStack() as ends:
        engine = Hf3fsStorage([FULL], settings(service, tmp_path))
        checked, found = CheckedStorage(engine), 0

        def confirmed() -> int:
            """Pages, since the service was started."""
            return int(service.stats()["ranks"]["r0"]["full"]["confirmed"])

        for turn in range(4):
            writers = [
                subprocess.Popen(
                    [sys.executable, "-c", WRITER, service.url, str(tmp_path), str(2 * turn + number)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
                for number in range(2)
            ]
            for writer in writers:
                ends.callback(writer.kill)
                assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
            wait_until(lambda: confirmed() > 60, "the writers stand still")
            time.sleep(choose.random() * 0.05)
            order = [lambda: service.process.send_signal(signal.SIGKILL), *(writer.kill for writer in writers)]
            choose.shuffle(order)
            for end in order:
                end()
                time.sleep(choose.random() * 0.02)
            service.kill()
            for writer in writers:
                writer.wait()
                assert writer.stdout is not None
                writer.stdout.close()
            service.start()
            service.let_pass()
            wait_until(lambda: bool(engine.exists("full", keys(*range(80))).any()), "the pages are not found again")
            pages = empty(80)
            outcomes = checked.get("full", keys(*range(80)), pages)
            engine.exists("full", keys(0))  # which says that the reading is over
            assert Outcome.CORRUPT not in outcomes, "a key has a page that holds something else"
            found += outcomes.count(Outcome.DONE)
            for number, page, outcome in zip(range(80), pages, outcomes, strict=True):
                assert outcome is not Outcome.DONE or page[:-64] == value(number)[:-64]
            gauges = service.stats()["ranks"]["r0"]["full"]
            assert gauges["held"] + gauges["free"] + gauges["written"] + gauges["aside"] + gauges["orphans"] == gauges["pages"]
        assert found > 40
        engine.close()


def test_an_answer_that_trickles_ends_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = threading.Event()

        def trickle() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                for letter in b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + bytes(20):
                    try:
                        connection.sendall(bytes([letter]))
                    except OSError:
                        return
                    if done.wait(0.1):
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        client = MetadataClient(server.getsockname()[:2], "r0", "", 0.5)
        try:
            with pytest.raises(MetadataAwayError, match="does not answer"):
                client.lookup(1, "full", keys(1))
        finally:
            client.close()
            done.set()
            thread.join()


def test_something_else_that_answers_is_no_service(tmp_path: Path) -> None:
    code = "import http.server; s = http.server.HTTPServer(('127.0.0.1', 0), http.server.BaseHTTPRequestHandler); "
    code += "print(s.server_port, flush=True); s.serve_forever()"
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        with pytest.raises(StorageError, match="HTTP 501"):
            Hf3fsStorage(
                [FULL],
                Hf3fsSettings(
                    metadata=f"http://127.0.0.1:{port}",
                    directory=str(tmp_path),
                    rank="r",
                    capacity_bytes=CAPACITY_BYTES,
                    request_timeout_s=PATIENCE_S,
                ),
            )
    finally:
        other.kill()
        other.communicate()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"metadata": "127.0.0.1:1"}, "metadata must be"),
        ({"metadata": "https://h:1"}, "metadata must be"),
        ({"metadata": "http://h"}, "metadata must be"),
        ({"metadata": "http://h:99999999"}, "metadata must be"),
        ({"rank": "../x"}, "rank must be"),
        ({"rank": ""}, "rank must be"),
        ({"directory": ""}, "must be paths"),
        ({"io": "mmap"}, "io must be one of"),
        ({"token": "a\nb"}, "printable ASCII"),
        ({"capacity_bytes": 0}, "capacity_bytes must be positive"),
        ({"io_timeout_s": float("nan")}, "io_timeout_s must be positive"),
        ({"request_timeout_s": float("inf")}, "request_timeout_s must be positive"),
        ({"io_threads": 1000}, "at most 256"),
    ],
)
def test_settings_that_cannot_be(setting: dict[str, Any], words: str) -> None:
    good: dict[str, Any] = {"metadata": "http://h:1", "directory": "d", "rank": "r", "capacity_bytes": SIZE}
    with pytest.raises(ConfigurationError, match=words):
        Hf3fsSettings(**(good | setting))
    assert "secret" not in repr(Hf3fsSettings(**good, token="secret"))
