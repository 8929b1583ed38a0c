"""What happens to every request, whether it reaches a sandbox by a route or by a preview."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from starlette.responses import Response

from sandkasten.errors import ConnectionRefused, ProtocolViolation, QuotaExceeded
from sandkasten.model.ids import host_label
from sandkasten.ports.spans import caller_key, request_id
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_server.api.http_app import OnlyPreviews
from sandkasten_server.api.previews import preview_app
from sandkasten_server.api.previews.preview_access import Previews
from sandkasten_server.api.previews.preview_rules import PreviewRules
from sandkasten_server.api.request import request_lifecycle
from sandkasten_server.api.routes import ports
from sandkasten_server.records.preview_directory import PreviewDirectory
from tests.api.daemon_with_database import AS_OPERATOR, booked, new_key
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from tests.api.daemon_in_process import Daemon


class Events:
    def __init__(self) -> None:
        self.emitted: list[tuple[str, dict[str, Any]]] = []

    def emit(self, event: str, fields: Any) -> None:
        if event.startswith("http."):
            self.emitted.append((event, {k: v for k, v in fields.items() if k != "seconds"}))


@dataclass
class Entrance:
    """One of the two ways to a server inside a sandbox. `inner` takes the place of the proxy."""

    daemon: Daemon
    url: str
    headers: dict[str, str]
    """The Host of a preview, and the key."""
    key_id: str
    route: str
    events: Events
    patch: pytest.MonkeyPatch

    def inner(self, answer: Any) -> None:
        """Let `answer` respond to HTTP requests and to WebSockets."""
        for module in (ports, preview_app):
            self.patch.setattr(module, "forward", answer)
            self.patch.setattr(module, "tunnel", answer)

    @property
    def keyless(self) -> dict[str, str]:
        return {name: value for name, value in self.headers.items() if name != "Authorization"}

    async def ask(self, method: str = "GET", headers: Any = None) -> tuple[Any, bytes]:
        more = self.headers if headers is None else headers
        async with self.daemon.http.request(method, self.url, headers=more) as answer:
            return answer, await answer.read()

    def socket(self) -> Any:
        return self.daemon.http.ws_connect(self.url, headers=self.headers)


@pytest.fixture
async def daemon(engine, tmp_path):
    ports_file = await PreviewDirectory.open(tmp_path / "previews")
    previews = Previews(PreviewRules(), ports_file, SystemClock())
    async with booked(engine, tmp_path / "data", previews=previews, events=Events()) as one:
        yield one


@pytest.fixture(params=["route", "preview"])
async def entrance(request, daemon, monkeypatch):
    made = await daemon.ask("POST", "/v1/sessions", {}, headers=AS_OPERATOR)
    the_id = made.json["id"]
    key = await new_key(daemon, tenant="default", scopes=["sessions"])
    listed = await daemon.ask("GET", "/v1/keys", headers=AS_OPERATOR)
    key_id = listed.json["keys"][-1]["id"]
    if request.param == "preview":
        host = f"8000-{host_label(the_id)}.localhost:{daemon.port}"
        path, headers, route = "/x", {**key, "Host": host}, "preview"
    else:
        path, headers = f"/v1/sessions/{the_id}/ports/8000/x", key
        route = "/v1/sessions/{id}/ports/{port}/{rest:path}"
    daemon.server.events.emitted.clear()
    url = daemon.url + path
    return Entrance(daemon, url, headers, key_id, route, daemon.server.events, monkeypatch)


def lines(caplog) -> list[dict[str, Any]]:
    return [one.sandkasten for one in caplog.records if one.getMessage() == "http.request"]


async def test_a_failure_is_counted_and_has_the_ids_of_its_request_and_key(entrance, caplog):
    caplog.set_level("INFO", logger="sandkasten.api")
    seen = []

    async def inner(*_):
        seen.append((request_id.get(), caller_key.get()))
        raise ConnectionRefused("nothing listens", hint="start it")

    entrance.inner(inner)
    answer, _ = await entrance.ask("GET", {**entrance.headers, "X-Request-Id": "mine-1"})
    assert (answer.status, answer.headers.getall("X-Request-Id")) == (502, ["mine-1"])
    assert seen == [("mine-1", entrance.key_id)]
    [line] = lines(caplog)
    assert line.pop("ms") >= 0
    assert line == {
        "method": "GET",
        "route": entrance.route,
        "status": 502,
        "request_id": "mine-1",
        "key_id": entrance.key_id,
        "tenant": "default",
        "code": "CONNECTION_REFUSED",
    }
    assert entrance.events.emitted == [
        ("http.error", {"code": "CONNECTION_REFUSED"}),
        ("http.answered", {"method": "GET", "route": entrance.route, "status": "5xx"}),
    ]


async def test_the_use_of_a_key_is_in_the_audit(entrance):
    async def inner(*_):
        return Response()

    entrance.inner(inner)
    await entrance.ask("GET", {**entrance.headers, "X-Request-Id": "mine-2"})
    audited = await entrance.daemon.ask("GET", "/v1/audit", headers=AS_OPERATOR)
    used = [row for row in audited.json["entries"] if row["action"] == "key.use"]
    assert [(row["target"], row["request_id"]) for row in used] == [(entrance.key_id, "mine-2")]


async def test_an_unforeseen_failure_has_an_id_and_no_text(entrance, caplog):
    async def inner(*_):
        raise ValueError("a secret")

    entrance.inner(inner)
    answer, raw = await entrance.ask()
    assert answer.status == 500
    assert b"secret" not in raw
    logged = [one for one in caplog.records if one.getMessage() == "request.failed"]
    assert [one.request_id for one in logged] == [answer.headers["X-Request-Id"]]


async def test_a_failure_after_the_headers_cuts_the_response_short(entrance, caplog):
    caplog.set_level("INFO", logger="sandkasten.api")

    class Broken(Response):
        async def __call__(self, scope, receive, send):
            headers = [(b"content-length", b"10")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
            raise ProtocolViolation("the server inside sent invalid HTTP")

    async def inner(*_):
        return Broken()

    entrance.inner(inner)
    with pytest.raises(aiohttp.ClientPayloadError):
        await entrance.ask()
    async with asyncio.timeout(PATIENCE_S):
        for stream in entrance.daemon.streams.of.values():
            await stream.ended.wait()
    [line] = lines(caplog)
    assert (line["status"], line["code"]) == (200, "PROTOCOL_VIOLATION")


async def test_the_wait_that_an_error_names_is_in_the_headers(entrance):
    async def inner(*_):
        raise QuotaExceeded("too many", hint="wait", quota="connections", retry_after_s=7)

    entrance.inner(inner)
    answer, _ = await entrance.ask()
    assert (answer.status, answer.headers["Retry-After"]) == (429, "7")


async def test_a_refused_websocket_names_its_request(entrance):
    async def inner(*_):
        raise ConnectionRefused("nothing listens", hint="start it")

    entrance.inner(inner)
    entrance.headers["X-Request-Id"] = "mine-3"
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await entrance.socket()
    assert refused.value.headers is not None
    assert (refused.value.status, refused.value.headers["X-Request-Id"]) == (502, "mine-3")


@pytest.mark.parametrize("message", ["x" * 500, "ü" * 500])
async def test_an_open_websocket_is_closed_with_the_reason_of_the_failure(
    entrance, caplog, message
):
    async def inner(_, websocket, *__):
        await websocket.accept()
        raise ProtocolViolation(message)

    entrance.inner(inner)
    async with entrance.socket() as socket:
        closed = await socket.receive(timeout=PATIENCE_S)
    assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1011)
    assert closed.extra == message[: 123 // len(message[0].encode())]
    assert "Traceback" not in caplog.text


async def test_an_open_websocket_ends_with_its_key(entrance, monkeypatch):
    monkeypatch.setattr(request_lifecycle, "RECHECK_EVERY_S", 0.05)

    async def inner(_, websocket, *__):
        await websocket.accept()
        await asyncio.Event().wait()

    entrance.inner(inner)
    async with entrance.socket() as socket:
        gone = await entrance.daemon.ask(
            "DELETE", f"/v1/keys/{entrance.key_id}", headers=AS_OPERATOR
        )
        assert gone.status == 200
        closed = await socket.receive(timeout=PATIENCE_S)
        assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1008)


async def test_many_requests_without_a_key_have_few_lines(entrance, caplog):
    caplog.set_level("INFO", logger="sandkasten.api")
    for _ in range(15):
        assert (await entrance.ask(headers=entrance.keyless))[0].status == 401
    assert [one["status"] for one in lines(caplog)] == [401] * 10


@pytest.mark.parametrize(
    ("host", "status"), [("8000-nothing.localhost", 404), ("evil.example", 421)]
)
async def test_many_requests_for_a_guessed_host_have_few_lines(daemon, caplog, host, status):
    caplog.set_level("INFO", logger="sandkasten.api")
    for _ in range(15):
        named = {"Host": f"{host}:{daemon.port}"}
        async with daemon.http.get(f"{daemon.url}/x", headers=named) as answer:
            assert answer.status == status
    assert [line["status"] for line in lines(caplog)] == [status] * 10


async def test_every_401_of_a_server_inside_has_its_line(entrance, caplog):
    caplog.set_level("INFO", logger="sandkasten.api")

    async def inner(*_):
        return Response(status_code=401)

    entrance.inner(inner)
    for _ in range(15):
        assert (await entrance.ask())[0].status == 401
    assert [one["status"] for one in lines(caplog)] == [401] * 15


async def test_a_daemon_that_goes_down_refuses_new_requests(entrance):
    entrance.daemon.server.draining = True
    answer, _ = await entrance.ask("POST")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")


async def test_a_drain_does_not_wait_for_what_a_server_inside_has_begun(entrance):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def inner(*_):
        begun.set()
        await go_on.wait()
        return Response()

    entrance.inner(inner)
    asking = asyncio.create_task(entrance.ask())
    async with asyncio.timeout(PATIENCE_S):
        await begun.wait()
        await entrance.daemon.streams._app.answered()
        assert not asking.done()
        go_on.set()
        assert (await asking)[0].status == 200


@pytest.mark.parametrize("entrance", ["preview"], indirect=True)
async def test_a_drain_waits_until_a_preview_has_resumed_its_sandbox(entrance):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def resume(_):
        begun.set()
        await go_on.wait()

    async def inner(*_):
        return Response()

    entrance.inner(inner)
    entrance.daemon.server.previews.resume = resume
    asking = asyncio.create_task(entrance.ask())
    async with asyncio.timeout(PATIENCE_S):
        await begun.wait()
        drained = asyncio.create_task(entrance.daemon.streams._app.answered())
        await asyncio.sleep(0)
        assert not drained.done()
        go_on.set()
        await drained
        assert (await asking)[0].status == 200


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_request_at_the_address_of_previews_that_names_none_has_its_line(
    daemon, kind, caplog
):
    caplog.set_level("INFO", logger="sandkasten.api")
    daemon.server.events.emitted.clear()
    sent = []

    async def receive():
        raise AssertionError("nothing is read")

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"x-request-id", b"mine-4")]
    scope = {"type": kind, "method": "GET", "path": "/", "headers": headers, "query_string": b""}
    app = OnlyPreviews(daemon.streams._app)
    await app(scope, receive, send)
    assert [message.get("status") for message in sent] == [421, None]
    assert (b"x-request-id", b"mine-4") in sent[0]["headers"]
    [line] = lines(caplog)
    shown = {name: line[name] for name in ("route", "status", "request_id", "code")}
    assert shown == {"route": "none", "status": 421, "request_id": "mine-4", "code": "FORBIDDEN"}
    assert daemon.server.events.emitted[0] == ("http.error", {"code": "FORBIDDEN"})


async def test_the_line_of_a_request_over_the_rate_names_its_key(daemon, caplog):
    caplog.set_level("INFO", logger="sandkasten.api")
    key = await new_key(daemon, tenant="t", quota={"requests_per_second": 0.5})
    statuses = [(await daemon.ask("GET", "/v1/sessions", headers=key)).status for _ in range(2)]
    assert statuses == [200, 429]
    served, refused = [line for line in lines(caplog) if line["route"] != "/v1/keys"]
    assert (refused["key_id"], refused["tenant"]) == (served["key_id"], "t")
