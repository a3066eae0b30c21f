"""The recording proxy in front of a small server on loopback: what passes, what is recorded, what may not break."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout, web
from full_disk import FullDisk

from unified_tree.controllers.workbench.recorder.block_hashes import BlockHasher, token_bytes
from unified_tree.controllers.workbench.recorder.exchanges import ExchangeReader
from unified_tree.controllers.workbench.recorder.prompt_tokens import PromptTokens
from unified_tree.controllers.workbench.recorder.proxy import RecordingProxy, server_address
from unified_tree.controllers.workbench.recorder.recorder import Recorder
from unified_tree.controllers.workbench.recorder.trace_writer import Disk, TraceFiles, TraceWriter
from unified_tree.terms.errors import ConfigurationError

BLOCK = 4
IDS = list(range(9))
TEXTS = PromptTokens(lambda text, _: [ord(letter) for letter in text])


class Server:
    """Answers as SGLang and vLLM do, and remembers what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, list[tuple[str, str]], bytes]] = []
        self.may_end = asyncio.Event()
        self.has_begun = asyncio.Event()
        self.was_left = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.got.append((request.method, request.raw_path, list(request.headers.items()), body))
        path = request.path
        if path == "/slow/v1/completions":
            return await self._slow(request)
        if path == "/broken/v1/completions":
            return await self._broken(request)
        if path == "/refuse/v1/completions":
            return web.json_response({"error": "no"}, status=400)
        if path == "/generate":
            meta = {"prompt_tokens": 9, "completion_tokens": 3, "cached_tokens": 4}
            return web.json_response({"text": "x", "output_ids": [7, 8, 9], "meta_info": meta})
        if path.startswith("/v1/") and request.method == "POST":
            fields = json.loads(body)
            return await self._streamed(request) if fields.get("stream") else self._whole()
        return web.Response(text="healthy", headers={"X-One": "1", "Set-Cookie": "a=b"})

    def _whole(self) -> web.Response:
        usage = {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 8}}
        return web.json_response({"choices": [{"index": 0, "text": "abc"}], "usage": usage})

    async def _begun(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        return response

    async def _streamed(self, request: web.Request) -> web.StreamResponse:
        response = await self._begun(request)
        for word in ("a", "b", "c"):
            await response.write(b'data: {"choices": [{"index": 0, "text": "%s"}]}\n\n' % word.encode())
        await response.write(b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}\n\n')
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _slow(self, request: web.Request) -> web.StreamResponse:
        response = await self._begun(request)
        await response.write(b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n')
        self.has_begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.was_left.set()
            raise
        return response

    async def _broken(self, request: web.Request) -> web.StreamResponse:
        response = await self._begun(request)
        await response.write(b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n')
        assert request.transport is not None
        request.transport.abort()
        return response


class Stage:
    """A server, its proxy and a client."""

    def __init__(
        self, server: Server, recorder: Recorder, proxy: RecordingProxy, address: str, direct: str, client: Any
    ) -> None:
        self.server = server
        self.recorder = recorder
        self.proxy = proxy
        self.address = address
        self.direct = direct
        self.client: ClientSession = client

    async def post(self, path: str, fields: Any, **given: Any) -> tuple[int, bytes]:
        async with self.client.post(self.address + path, json=fields, **given) as answer:
            return answer.status, await answer.read()

    async def raw(self, sent: bytes) -> bytes:
        host, _, port = self.address.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        try:
            return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        except asyncio.IncompleteReadError as error:
            return error.partial
        finally:
            writer.close()
            await writer.wait_closed()

    async def summary(self) -> str:
        await asyncio.to_thread(self.recorder.settle)
        return self.recorder.summary().rpartition("; ")[2] if "lost" in self.recorder.summary() else ""


@asynccontextmanager
async def staged(
    directory: Path, disk: Disk | None = None, prompts: PromptTokens = TEXTS, **given: Any
) -> AsyncIterator[Stage]:
    server = Server()
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    direct = f"http://127.0.0.1:{runner.addresses[0][1]}"
    recorder = Recorder(TraceWriter(BlockHasher(BLOCK), TraceFiles(directory, disk=disk)))
    base = given.pop("base_model", None)
    proxy = RecordingProxy(direct, recorder, ExchangeReader(prompts, base), time_ms=lambda: 17, **given)
    address = await proxy.start()
    async with ClientSession(timeout=ClientTimeout(total=60)) as client:
        try:
            yield Stage(server, recorder, proxy, address, direct, client)
        finally:
            server.may_end.set()
            await proxy.stop()
            await runner.cleanup()
            await asyncio.to_thread(recorder.close)


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(directory.glob("*.jsonl")) for line in path.read_text().splitlines()]


def run(directory: Path, work: Callable[[Stage], Awaitable[None]], **given: Any) -> list[dict[str, Any]]:
    async def whole() -> None:
        async with staged(directory, **given) as stage:
            await work(stage)

    asyncio.run(whole())
    return lines(directory)


def ids(tokens: list[int], namespace: str = "") -> list[int]:
    return BlockHasher(BLOCK).ids(token_bytes(tokens), namespace)


def test_prompts_are_recorded_by_token_ids_and_by_text(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        status, body = await stage.post("/v1/completions", {"prompt": IDS})
        assert (status, json.loads(body)["usage"]["completion_tokens"]) == (200, 5)
        await stage.post("/v1/completions", {"prompt": "abcdefghi"})
        await stage.post("/generate", {"input_ids": IDS})

    given, text, generated = run(tmp_path, work)
    assert given == {
        "timestamp": 17,
        "input_length": 9,
        "output_length": 5,
        "hash_ids": ids(IDS),
        "block_size": BLOCK,
        "cached_tokens": 8,
    }
    assert text["hash_ids"] == ids([ord(letter) for letter in "abcdefghi"])
    assert generated["hash_ids"] + generated["output_hash_ids"] == ids([*IDS, 7, 8, 9])
    assert (generated["output_length"], generated["cached_tokens"]) == (3, 4)
    written = "".join(path.read_text() for path in tmp_path.glob("*.jsonl"))
    assert "abc" not in written


def test_a_stream_passes_piece_by_piece_and_is_counted(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        asked = {"prompt": IDS, "stream": True}
        async with stage.client.post(stage.address + "/v1/completions", json=asked) as answer:
            through = await answer.read()
        async with stage.client.post(stage.direct + "/v1/completions", json=asked) as answer:
            assert through == await answer.read()
        async with stage.client.post(stage.address + "/slow/v1/completions", json=asked) as answer:
            first = await answer.content.readline()
            assert first.startswith(b"data: "), "it has come although the answer has not ended"
            stage.server.may_end.set()
            await answer.read()

    first, second = run(tmp_path, work)
    assert (first["output_length"], first["input_length"], "cached_tokens" in first) == (3, 9, False)
    assert second["output_length"] == 1, "without usage the pieces are counted"


def test_everything_else_passes_unchanged_and_unrecorded(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        for path in ("/health", "/v1/models?a=%2F%20b&c=%C3%A9", "/a%2Fb/../c//d", "/x;y?&&=#f"):
            async with stage.client.get(stage.address + path) as answer:
                through = (answer.status, await answer.read(), [h for h in answer.headers.items() if h[0] != "Date"])
            async with stage.client.get(stage.direct + path) as answer:
                assert through == (answer.status, await answer.read(), [h for h in answer.headers.items() if h[0] != "Date"])
        (_, by_proxy, _, _), (_, by_hand, _, _) = stage.server.got[-2:]
        assert by_proxy == by_hand
        async with stage.client.head(stage.address + "/health") as answer:
            assert (answer.status, answer.headers["Content-Length"]) == (200, "7")
        async with stage.client.put(stage.address + "/put", data=b"\0" * 100_000) as answer:
            assert answer.status == 200
        assert stage.server.got[-1][3] == b"\0" * 100_000

    assert run(tmp_path, work) == []


def test_headers_of_the_client_arrive_and_none_is_added(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        got = await stage.raw(
            b"GET /health HTTP/1.1\r\nHost: x\r\nX-Two: 1\r\nX-Two: 2\r\nAuthorization: Bearer k\r\nX-Hop: 1\r\n"
            b"Keep-Alive: 5\r\nConnection: close, X-Hop\r\n\r\n"
        )
        assert got.startswith(b"HTTP/1.1 200") and b"X-One: 1" in got and b"Set-Cookie: a=b" in got
        names = [name.lower() for name, _ in stage.server.got[0][2]]
        assert sorted(set(names) - {"host", "connection"}) == ["authorization", "x-two"]
        assert [value for name, value in stage.server.got[0][2] if name == "X-Two"] == ["1", "2"]

    run(tmp_path, work)


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabcde",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length : 5\r\n\r\nabcde",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nA: b\nContent-Length: 5\r\n X: y\r\n\r\nabcde",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX: \xff\r\nContent-Length: 2\r\n\r\n{}",
        b"GET http://[::1/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT evil.example:80 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0\1\2\r\n\r\n",
    ],
)
def test_a_smuggled_request_reaches_no_server(tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    async def work(stage: Stage) -> None:
        got = await stage.raw(sent)
        assert not got.startswith(b"HTTP/1.1 2")
        assert not stage.server.got
        assert (await stage.post("/v1/completions", {"prompt": IDS}))[0] == 200

    assert len(run(tmp_path, work)) == 1
    assert not caplog.records, "what a client sends is in no log"


def test_a_request_goes_to_the_one_server_whatever_it_names(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        for target in (b"http://192.0.2.1:9/health", b"//192.0.2.1:9/health", b"/@192.0.2.1:9/"):
            got = await stage.raw(b"GET " + target + b" HTTP/1.1\r\nHost: 192.0.2.1\r\nConnection: close\r\n\r\n")
            assert got.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400"))
        for _, _, headers, _ in stage.server.got:
            assert dict(headers)["Host"] == stage.direct.removeprefix("http://")

    run(tmp_path, work)


def test_a_server_that_is_gone_is_said_and_counted(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        recorder = stage.recorder
        proxy = RecordingProxy("http://127.0.0.1:1", recorder, ExchangeReader(TEXTS))
        address = await proxy.start()
        async with stage.client.post(address + "/v1/completions", json={"prompt": IDS}) as answer:
            assert answer.status == 502
            assert "does not answer" in (await answer.json())["error"]["message"]
        await proxy.stop()
        assert await stage.summary() == "lost 1 (not served: 1)"

    assert run(tmp_path, work) == []


def test_an_answer_that_is_refused_or_broken_off_stays_so(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        status, body = await stage.post("/refuse/v1/completions", {"prompt": IDS})
        assert (status, json.loads(body)) == (400, {"error": "no"})
        with pytest.raises(Exception, match=r"(?i)payload|disconnected|reset"):
            await stage.post("/broken/v1/completions", {"prompt": IDS})
        assert await stage.summary() == "lost 1 (not served: 1)"

    [line] = run(tmp_path, work)
    assert line["output_length"] == 1, "what had come of the answer"


def test_a_client_that_leaves_ends_the_work_and_is_recorded(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        async with stage.client.post(stage.address + "/slow/v1/completions", json={"prompt": IDS}) as answer:
            await answer.content.readline()
            answer.close()
        await asyncio.wait_for(stage.server.was_left.wait(), 30)
        assert (await stage.post("/v1/completions", {"prompt": IDS}))[0] == 200

    assert sorted(line["output_length"] for line in run(tmp_path, work)) == [1, 5]


def test_a_full_disk_costs_the_recording_and_no_request(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        for _ in range(5):
            assert (await stage.post("/v1/completions", {"prompt": IDS}))[0] == 200
        assert await stage.summary() == "lost 5 (the disk failed: 5)"

    assert run(tmp_path, work, disk=FullDisk()) == []


def test_a_body_beyond_the_bound_passes_and_is_counted(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        huge = json.dumps({"prompt": "x" * 3_000_000}).encode()
        for body in (io.BytesIO(huge), _in_pieces(huge)):
            async with stage.client.post(stage.address + "/v1/completions", data=body) as answer:
                assert answer.status == 200
        assert [len(got[3]) for got in stage.server.got] == [len(huge), len(huge)]
        assert await stage.summary() == "lost 2 (larger than is kept: 2)"
        assert (await stage.post("/v1/completions", {"prompt": IDS}))[0] == 200

    assert len(run(tmp_path, work, longest_bytes=1_000_000)) == 1


async def _in_pieces(data: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(data), 100_000):
        yield data[begin : begin + 100_000]


def test_what_runs_is_kept_up_to_a_bound_of_all(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        async with stage.client.post(stage.address + "/slow/v1/completions", json={"prompt": [1] * 200}) as answer:
            await answer.content.readline()
            assert (await stage.post("/v1/completions", {"prompt": [2] * 200}))[0] == 200
            stage.server.may_end.set()
            await answer.read()
        assert await stage.summary() == "lost 1 (larger than is kept: 1)"
        assert (await stage.post("/v1/completions", {"prompt": [3] * 200}))[0] == 200

    written = run(tmp_path, work, kept_bytes=1000)
    assert [line["hash_ids"][:1] for line in written] == [ids([each] * 4) for each in (1, 3)]


BODIES: list[tuple[bytes, str]] = [
    (b"", "the body is no JSON"),
    (b"\xff\xfe{", "the body is no JSON"),
    (b"[" * 100_000, "the body is no JSON"),
    (b'{"prompt": 1' + b"0" * 5000 + b"}", "the body is no JSON"),
    (b"[1]", "the body is no JSON object"),
    (b"{}", "no prompt in the body"),
    (b'{"prompt": null}', "no prompt in the body"),
    (b'{"prompt": [1, -1]}', "no prompt in the body"),
    (b'{"prompt": [1, 1e3]}', "no prompt in the body"),
    (b'{"prompt": [true]}', "no prompt in the body"),
    (b'{"prompt": [9223372036854775808]}', "no prompt in the body"),
    (b'{"prompt": [["a"]]}', "no prompt in the body"),
    (b'{"prompt": {"a": 1}}', "no prompt in the body"),
]


@pytest.mark.parametrize(("body", "reason"), BODIES)
def test_a_body_that_is_no_request_passes_and_is_counted(tmp_path: Path, body: bytes, reason: str) -> None:
    async def work(stage: Stage) -> None:
        async with stage.client.post(stage.address + "/any/v1/completions", data=body) as answer:
            assert answer.status == 200
        assert stage.server.got[0][3] == body
        assert await stage.summary() == f"lost 1 ({reason}: 1)"

    assert run(tmp_path, work) == []


def test_lone_surrogates_and_zipped_bodies_pass(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        for body in (b'{"prompt": "\\ud800abcdefgh"}', b'{"prompt": "abc", "model": "\\udfff"}'):
            async with stage.client.post(stage.address + "/v1/completions", data=body) as answer:
                assert answer.status == 200
        zipped = gzip.compress(b'{"prompt": "abc"}')
        headers = {"Content-Encoding": "gzip"}
        async with stage.client.post(stage.address + "/x", data=zipped, headers=headers) as answer:
            assert answer.status == 200

    first, second = run(tmp_path, work)
    assert first["hash_ids"] == ids([ord(letter) for letter in "?abcdefgh"])
    assert second["input_length"] == 9, "as the server counts"


def test_several_prompts_are_several_requests(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        await stage.post("/v1/completions", {"prompt": [IDS, [5] * 4]})
        await stage.post("/v1/completions", {"prompt": ["abcd", "abcdefgh"]})

    assert [(line["input_length"], line["output_length"]) for line in run(tmp_path, work)] == [(9, 0), (4, 0), (4, 0), (8, 0)]


def test_models_salts_and_adapters_keep_prompts_apart(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = [
        {"model": "base"},
        {},
        {"model": "adapter"},
        {"cache_salt": "s"},
        {"extra_key": "s"},
        {"model": "base", "lora_path": "adapter"},
    ]

    async def work(stage: Stage) -> None:
        for fields in asked:
            await stage.post("/v1/completions", {"prompt": IDS, **fields})

    written = [tuple(line["hash_ids"]) for line in run(tmp_path, work, base_model="base")]
    assert written[0] == written[1] == tuple(ids(IDS)) and written[2] == written[5]
    assert len(set(written)) == 4


def test_a_conversation_shares_its_beginning_by_turns(tmp_path: Path) -> None:
    one = [{"role": "user", "content": "Say something long enough."}]
    two = [
        *one,
        {"role": "assistant", "content": "Something."},
        {"role": "user", "content": [{"type": "text", "text": "More."}]},
    ]
    pictures = [[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:{i}"}}]}] for i in (1, 2)]

    async def work(stage: Stage) -> None:
        for messages in (one, two, *pictures):
            assert (await stage.post("/v1/chat/completions", {"messages": messages}))[0] == 200
        for messages in (None, [], ["a"], "a"):
            assert (await stage.post("/v1/chat/completions", {"messages": messages}))[0] == 200
        assert await stage.summary() == "lost 4 (no prompt in the body: 4)"

    prompts = PromptTokens()
    first, second, *seen = run(tmp_path, work, prompts=prompts)
    shared = [a == b for a, b in zip(first["hash_ids"], second["hash_ids"], strict=False)]
    assert shared.count(True) >= 3 and second["input_length"] > first["input_length"]
    assert seen[0]["hash_ids"][-1] != seen[1]["hash_ids"][-1]
    assert first["cached_tokens"] == round(8 * first["input_length"] / 9), "in the tokens of the estimate"


def test_ids_that_the_server_tells_are_the_prompt(tmp_path: Path) -> None:
    async def work(stage: Stage) -> None:
        whole = {"choices": [{"index": 0, "message": {"content": "x"}, "token_ids": [7, 8, 9]}], "prompt_token_ids": IDS}
        stage.server._whole = lambda: web.json_response(whole)  # type: ignore[method-assign]
        await stage.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "return_token_ids": True})

    [line] = run(tmp_path, work)
    assert line["hash_ids"] + line["output_hash_ids"] == ids([*IDS, 7, 8, 9])


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1:30000", "ftp://a:1", "http://", "http://a:b", "http://u:p@a:1", "http://a:1/?q"]
)
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="a server is given as"):
        server_address(text)


def test_an_address_may_have_a_path() -> None:
    assert server_address("http://127.0.0.1:30000/base/") == "http://127.0.0.1:30000/base"
