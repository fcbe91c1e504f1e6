"""One request, from its headers to its response, without a socket."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from tests.collection import without_collection
from tests.server.asgi import call
from tests.server.fakes import EMBED, FINGERPRINT, MODEL, FakeEngine, dialect, route
from tests.server.live import Reply, connected, live, post, until

from vectord.config import ServerConfig
from vectord.engine.events import Event
from vectord.errors import EmptyInput, InputTooLong, Overloaded, VectordError
from vectord.observability.exchange import Exchange
from vectord.observability.metrics import Metrics
from vectord.products.common.dialect import Call, Dialect, Incoming, load_dialects
from vectord.schema import Caller, EmbedRequest, Request, TextLength, TextLengths
from vectord.server import pipeline
from vectord.server.admission.gate import Gate
from vectord.server.admission.keys import new_key
from vectord.server.http.app import build_table, create_app
from vectord.server.http.handler import LARGE_BYTES
from vectord.server.pipeline import Shutdown

CAT = dialect("cat", route("cat", "/say", keys=("meow",)))
DOG = dialect("dog", route("dog", "/say", keys=("woof",)), route("dog", "/dogs/{name}", "GET"))


async def ask(
    body: object = {"input": "hello"},
    *,
    engine: FakeEngine | None = None,
    method: str = "POST",
    path: str = "/v1/embed",
    headers: dict[str, str] | None = None,
    config: ServerConfig | None = None,
    dialects: tuple[Any, ...] = (EMBED, CAT, DOG),
    **scope: Any,
) -> Reply:
    app = create_app(engine or FakeEngine(), dialects, config or ServerConfig())
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await call(app, method, path, content, headers=headers, **scope)


async def test_a_response_has_the_engines_result_in_the_products_form() -> None:
    """With the request id and lengths in headers."""
    reply = await ask({"input": "hello"}, headers={"x-request-id": "me-1"})
    assert reply.status == 200
    assert reply.json["dialect"] == "first"
    assert reply.json["inputs"] == ["hello"]
    assert reply.headers["x-request-id"] == "me-1"
    assert reply.headers["x-vectord-tokens-seen"] == "3"
    assert reply.headers["content-type"] == "application/json"
    assert int(reply.headers["content-length"]) == len(reply.body)


async def test_a_failed_request_is_freed_at_once() -> None:
    """Also if frames refer to the error that passed through them, and if an error was raised because of another."""

    class Keeping(FakeEngine):
        async def answer(self, request: Request, caller: Caller) -> Any:
            try:
                failed = InputTooLong("")
                raise failed
            except VectordError as error:
                kept = EmptyInput("", field="input")
                raise kept from error.__cause__

    with without_collection():
        assert (await ask({"input": "a text"}, engine=Keeping())).status == 400
        left = [each for each in gc.get_objects() if type(each) is EmbedRequest and each.inputs == ["a text"]]
        assert not left


async def test_the_engine_receives_the_caller() -> None:
    """Address, request id and lane, and never the key."""
    engine = FakeEngine()
    await ask(engine=engine, headers={"x-request-id": "me-1", "x-vectord-lane": "bulk", "authorization": "Bearer k"})
    (caller,) = engine.callers
    assert (caller.client, caller.request_id, caller.lane) == ("10.0.0.1", "me-1", "bulk")


@pytest.mark.parametrize(("key", "speaker"), [("meow", "cat"), ("woof", "dog"), ("neither", "cat")])
async def test_errors_have_the_form_of_the_selected_product(key: str, speaker: str) -> None:
    """If the body has no product's required keys, the form is that of the path's first product."""
    engine = FakeEngine()
    engine.error = Overloaded("Busy.", retry_after_s=1)
    reply = await ask({key: "x"}, engine=engine, path="/say")
    assert (reply.status, reply.json.get("dialect")) == (429, speaker)


BUSY = Overloaded("Busy.", retry_after_s=1)


async def unread() -> dict[str, Any]:
    raise AssertionError("the body was read")


@pytest.mark.parametrize(("path", "body"), [("/v1/embed", b"{}"), ("/say", b"x" * 16_385)], ids=["one", "large"])
async def test_a_busy_engine_refuses_before_the_body_is_read(path: str, body: bytes) -> None:
    """On a path of one product. On a path of several, which a small body selects, only if the body is large."""
    engine = FakeEngine()
    engine.busy = BUSY
    app = create_app(engine, (EMBED, CAT, DOG), ServerConfig())
    reply = await call(app, "POST", path, headers={"content-length": str(len(body))}, receive=unread)
    assert (reply.status, engine.callers) == (429, [])


@pytest.mark.parametrize(("key", "speaker"), [("meow", "cat"), ("woof", "dog")])
async def test_a_busy_engine_refuses_a_small_body_in_its_products_form(key: str, speaker: str) -> None:
    """Before it is parsed: only its keys are read."""
    parsed = []

    def watched(each: Dialect) -> Dialect:
        (first, *others) = each.routes

        def parse(incoming: Incoming) -> Call:
            parsed.append(incoming.body)
            return first.parse(incoming)

        return replace(each, routes=(replace(first, parse=parse), *others))

    engine = FakeEngine()
    engine.busy = BUSY
    reply = await ask({key: "x"}, engine=engine, path="/say", dialects=(EMBED, watched(CAT), watched(DOG)))
    assert (reply.status, reply.json["dialect"]) == (429, speaker)
    assert parsed == []


async def test_large_bodies_are_parsed_one_at_a_time_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser holds the interpreter's lock. The event loop competes with one thread at most."""
    real = asyncio.to_thread
    running, calls = [], []

    async def counted(work: Any, *arguments: Any) -> Any:
        running.append(work)
        calls.append(len(running))
        try:
            return await real(work, *arguments)
        finally:
            running.remove(work)

    monkeypatch.setattr(asyncio, "to_thread", counted)
    app = create_app(FakeEngine(), (EMBED, CAT, DOG), ServerConfig())
    body = json.dumps({"meow": "m" * LARGE_BYTES, "input": "hello"}).encode()
    replies = await asyncio.gather(*(call(app, "POST", "/say", body) for _ in range(3)))
    assert [reply.status for reply in replies] == [200] * 3
    assert calls == [1] * 6  # the choice of the product and the parser of each


async def test_a_busy_engine_is_asked_about_the_caller_and_the_kind_of_request() -> None:
    """A route that computes nothing, such as a list of models, is not refused early."""
    engine = FakeEngine()
    await ask(engine=engine, headers={"x-vectord-lane": "bulk"})
    ((operation, caller),) = engine.checked
    assert operation == "embed"
    assert (caller.client, caller.lane) == ("10.0.0.1", "bulk")
    engine.busy = BUSY
    assert (await ask(b"", engine=engine, method="GET", path="/dogs/rex")).status == 200


@pytest.mark.parametrize(
    ("path", "config", "reason"),
    [
        ("/nowhere", ServerConfig(), "Nothing is served at this path"),
        ("/v1/embed", ServerConfig(api_key="secret"), "A key is required"),
    ],
    ids=["404", "401"],
)
async def test_the_log_has_the_reason_of_a_refusal(
    path: str, config: ServerConfig, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In the server's words, which never repeat the request's."""
    with caplog.at_level(logging.INFO, "vectord.requests"):
        await ask(path=path, config=config)
    (record,) = [record for record in caplog.records if record.name == "vectord.requests"]
    assert record.fields["reason"].startswith(reason)  # type: ignore[attr-defined]


async def test_path_values_reach_the_parser() -> None:
    assert (await ask(b"", method="GET", path="/dogs/rex")).json["inputs"] == ["rex"]


async def test_a_root_path_is_not_part_of_the_path() -> None:
    """As for a proxy that adds a prefix."""
    assert (await ask(path="/models/v1/embed", root_path="/models")).status == 200


async def test_an_unexpected_exception_is_500_and_logged_with_the_request_id(caplog: pytest.LogCaptureFixture) -> None:
    """The response has the id only; the log has the traceback with the same id."""
    engine = FakeEngine()
    engine.error = RuntimeError("secret: /etc/passwd")
    with caplog.at_level(logging.ERROR):
        reply = await ask(engine=engine, headers={"x-request-id": "me-1"})
    assert (reply.status, reply.json["dialect"]) == (500, "first")
    assert b"secret" not in reply.body
    (record,) = caplog.records
    assert record.fields["id"] == "me-1"  # type: ignore[attr-defined]
    assert record.exc_info is not None
    assert record.exc_info[1] is engine.error


async def test_a_failure_before_admission_is_a_500_in_the_products_form(caplog: pytest.LogCaptureFixture) -> None:
    class BrokenGate(Gate):
        def address(self, *details: object) -> str:
            raise RuntimeError("secret")

    app = create_app(FakeEngine(), (EMBED,), ServerConfig(), gate=BrokenGate(ServerConfig()))
    reply = await call(app, "POST", "/v1/embed", b'{"input": "x"}', headers={"x-request-id": "me-2"})
    assert (reply.status, reply.json["dialect"]) == (500, "first")
    assert reply.headers["x-request-id"] == "me-2"
    assert b"secret" not in reply.body
    assert [record.fields["id"] for record in caplog.records if record.name == "vectord.failures"] == ["me-2"]  # type: ignore[attr-defined]


class BrokenMetrics(Metrics):
    def observe(self, event: object) -> None:
        fail()


def fail(*details: object) -> Any:
    raise RuntimeError("secret")


async def fail_later(*details: object) -> None:
    fail()


@pytest.mark.parametrize("what", ["observe", "begin", "end", "log", "spend"])
async def test_a_report_that_fails_does_not_fail_the_request(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other reports follow, and the log has the reason, once for all requests."""
    caplog.set_level(logging.INFO, "vectord.requests")
    key, entry = new_key("search")
    (tmp_path / "keys.toml").write_text(f"{entry}tokens_per_minute = 1000\n")
    gate, tracer = Gate(ServerConfig(api_keys_file=str(tmp_path / "keys.toml"))), Mock()
    tracer.begin = fail if what == "begin" else lambda *_: Mock(traceparent="00-0-0-00", trace_id=None)
    tracer.end = fail if what == "end" else Mock()
    metrics = BrokenMetrics("1.0") if what == "observe" else None
    if what == "log":
        monkeypatch.setattr(pipeline, "log_answer", fail)
    if what == "spend":
        monkeypatch.setattr(gate.limits, "spend", fail_later)
    app = create_app(FakeEngine(), (EMBED,), ServerConfig(), metrics, gate=gate, tracer=tracer)
    for _ in range(2):
        reply = await call(app, "POST", "/v1/embed", b'{"input": "x"}', headers={"x-api-key": key})
        assert (reply.status, reply.json["inputs"]) == (200, ["x"])
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["secret"]
    if what != "log":
        assert len([record for record in caplog.records if record.name == "vectord.requests"]) == 2


async def test_a_failing_renderer_is_a_500() -> None:
    """In the product's form."""
    broken = replace(route("first", "/v1/embed"), parse=lambda _: Call(EmbedRequest(inputs=["a"]), lambda _: 1 / 0))
    reply = await ask(dialects=(dialect("first", broken),))
    assert (reply.status, reply.json["dialect"]) == (500, "first")


async def test_no_error_contains_request_content() -> None:
    """Neither path nor body nor headers."""
    marker = "zq9marker"
    replies = [
        await ask(path=f"/{marker}"),
        await ask(marker.encode()),
        await ask(headers={"content-type": f"image/{marker}"}),
        await ask(headers={"content-encoding": marker}),
        await ask(headers={"authorization": marker}, config=ServerConfig(api_key="k")),
        await ask(method=marker),
    ]
    assert [reply.status for reply in replies] == [404, 400, 415, 415, 401, 405]
    assert not any(marker.encode() in reply.body for reply in replies)
    assert not any(marker in value for reply in replies for value in reply.headers.values())


@pytest.mark.parametrize("size", [100, 100_000], ids=["small", "large"])
async def test_large_responses_are_compressed_if_accepted(size: int) -> None:
    """From compress_min_bytes on, with Vary."""
    engine = FakeEngine(dimensions=size // 20)
    plain = await ask(engine=engine, config=ServerConfig(compress_min_bytes=4096))
    packed = await ask(engine=engine, config=ServerConfig(compress_min_bytes=4096), headers={"accept-encoding": "gzip"})
    if size < 4096:
        assert "content-encoding" not in packed.headers
        assert "vary" not in packed.headers
    else:
        assert packed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(packed.body) == plain.body
        assert plain.headers["vary"] == packed.headers["vary"] == "accept-encoding"
        assert int(packed.headers["content-length"]) == len(packed.body) < len(plain.body)


async def test_compression_can_be_disabled() -> None:
    """With compress_min_bytes 0."""
    engine = FakeEngine(dimensions=5000)
    reply = await ask(engine=engine, config=ServerConfig(compress_min_bytes=0), headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in reply.headers


async def test_head_has_the_headers_of_get_and_no_body() -> None:
    """Including Content-Length."""
    shown = await ask(b"", method="GET", path="/health/live")
    head = await ask(b"", method="HEAD", path="/health/live")
    assert head.body == b""
    assert head.headers["content-length"] == shown.headers["content-length"]


@pytest.mark.parametrize("method", ["GET", "OPTIONS", "DELETE", "PATCH", "TRACE"])
async def test_other_methods_are_405(method: str) -> None:
    """In the form of the path's owner, without reading the body."""
    reply = await ask(b"", method=method)
    assert (reply.status, reply.json["dialect"]) == (405, "first")


@pytest.mark.parametrize("path", ["*", "", "//", "/../etc/passwd", "/v1/embed/../../x", "/\x00", "/%2e", "/\udcff"])
async def test_odd_paths_are_not_served(path: str) -> None:
    """404 with a request id; no path is resolved."""
    reply = await ask(path=path)
    assert (reply.status, "x-request-id" in reply.headers) == ((405 if path in ("", "//") else 404), True)


async def test_websockets_are_declined() -> None:
    """In their own protocol."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    app = create_app(FakeEngine(), [EMBED], ServerConfig())
    await app({"type": "websocket", "path": "/v1/embed", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1003}]


class Recording(Metrics):
    """Records the exchanges."""

    def __init__(self) -> None:
        super().__init__("0")
        self.heard: list[tuple[str, str, int]] = []

    def observe(self, event: Event | Exchange) -> None:
        assert isinstance(event, Exchange)
        self.heard.append((event.dialect, event.route, event.status))


async def test_every_response_is_reported() -> None:
    """With product, the path's template and status, never the path itself."""
    engine, metrics = FakeEngine(), Recording()
    app = create_app(engine, [EMBED, DOG], ServerConfig(), metrics)
    await call(app, "POST", "/v1/embed", b'{"input": "x"}')
    await call(app, "GET", "/dogs/rex")
    await call(app, "GET", "/some/random/path")
    engine.error = InputTooLong("Too long.")
    await call(app, "POST", "/v1/embed/", b'{"input": "x"}')
    assert metrics.heard == [
        ("first", "/v1/embed", 200),
        ("dog", "/dogs/{name}", 200),
        ("server", "", 404),
        ("first", "/v1/embed", 400),
    ]


async def test_refused_requests_of_one_second_share_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """The first has its own; the others are counted by error class. Other errors keep a line for each request."""
    engine = FakeEngine()
    refused, failed = Overloaded("Busy.", retry_after_s=1), InputTooLong("Long.")
    async with live(engine) as running, connected(running) as client:
        with caplog.at_level(logging.INFO, "vectord.requests"):
            for error in (refused, refused, failed, refused, failed):
                engine.error = error
                client.send(post({"input": "a"}))
                await client.reply()
            await until(lambda: caplog.records[-1].getMessage() == "refused")
    lines = [
        (line.getMessage(), line.fields.get("count")) for line in caplog.records if line.name == "vectord.requests"
    ]
    assert lines == [("answered", None)] * 3 + [("refused", 2)]


async def test_one_log_line_a_request_without_text_or_key(caplog: pytest.LogCaptureFixture) -> None:
    """With id, route, status, time, model and tokens."""
    with caplog.at_level(logging.INFO):
        await ask(
            {"input": "zqsecret"},
            headers={"authorization": "Bearer zqkey"},
            engine=FakeEngine(TextLengths.of([TextLength(9, 4)])),
        )
    (record,) = [record for record in caplog.records if record.name == "vectord.requests"]
    fields: dict[str, Any] = record.fields  # type: ignore[attr-defined]
    assert fields | {"id": 0, "latency_ms": 0} == {
        "tokenize_ms": 0.0,
        "queue_ms": 0.0,
        "inference_ms": 0.0,
        "id": 0,
        "method": "POST",
        "route": "/v1/embed",
        "status": 200,
        "latency_ms": 0,
        "model": MODEL,
        "tokens": 4,
        "batch_size": 1,
    }
    assert "zq" not in repr(vars(record))


async def test_the_reason_of_a_refusal_is_short_and_printable_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """It may quote names that the client chose."""
    engine = FakeEngine()
    engine.error = InputTooLong("a\n\x1b[31m\u202e" + "b" * 1000)
    with caplog.at_level(logging.INFO):
        await ask(engine=engine)
    (record,) = [record for record in caplog.records if record.name == "vectord.requests"]
    assert record.fields["reason"] == "a??[31m?" + "b" * 292  # type: ignore[attr-defined]


async def test_a_client_that_accepts_bytes_gets_bytes() -> None:
    """From every product, and uncompressed."""
    headers = {"accept": "application/octet-stream", "accept-encoding": "gzip"}
    reply = await ask(engine=FakeEngine(dimensions=4096), headers=headers)
    assert (reply.status, reply.headers["content-type"]) == (200, "application/octet-stream")
    assert len(reply.body) == 4096 * 4
    assert "content-encoding" not in reply.headers
    assert reply.headers["x-vectord-fingerprint"] == FINGERPRINT


async def test_an_unknown_form_is_refused() -> None:
    """In the product's form, before the engine is called."""
    engine = FakeEngine()
    reply = await ask(engine=engine, headers={"accept": "application/octet-stream;dtype=int3"})
    assert (reply.status, reply.json["error"]) == (406, "NotAcceptable")
    assert not engine.callers


# --- models ----------------------------------------------------------------------------------------------------


async def test_anonymous_requests_do_not_make_metrics_large() -> None:
    """Every route, unserved paths, other methods, invalid bodies and invented names, by a client without a key and by
    one with a key: the labels are those of the server, and only counters have one for each route."""
    dialects = load_dialects(())
    for key in (None, "k"):
        metrics = Metrics("0")
        app = create_app(FakeEngine(), dialects, ServerConfig(api_key=key), metrics)
        endpoints = list(build_table(FakeEngine(), dialects, Shutdown(), metrics))
        for number, endpoint in enumerate(endpoints):
            path = re.sub(r"\{.*?\}", f"name-{number}", endpoint.path)
            sent = {"host": f"host-{number}", "x-request-id": str(number), "user-agent": str(number)}
            body = json.dumps({"input": "x", "inputs": "x", "model": f"model-{number}"}).encode()
            for method in (endpoint.method, "PATCH", f"METHOD{number}"):
                await call(app, method, path, body, headers=sent)
            await call(app, "GET", f"{path}/nothing-{number}", headers=sent)
        page, _ = await metrics.exposition()
        assert len(page) < 150_000
        assert not re.search(rb"(name|model|host|nothing)-\d|METHOD", page)
