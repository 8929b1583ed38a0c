"""Health, readiness, metrics, version and the docs page."""

from __future__ import annotations

import asyncio
import re

import aiohttp
import pytest
from starlette.responses import Response

from sandkasten.client.server.embedded import ServerAddress, settings
from sandkasten.errors import BackendUnavailable
from sandkasten.model.access.tenancy import SCOPES, TenantQuota
from sandkasten.model.backends.backend_features import BackendReport
from sandkasten.model.journal_rows import KeyRow
from sandkasten.model.sandbox.limits import Unenforced
from sandkasten.model.sandbox.network_policy import NetworkCounts
from sandkasten.model.sandbox.readiness import Readiness, Requirement, Tier
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.backends.backend_catalog import CAPABILITIES
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.telemetry.json_log import JsonLines
from sandkasten_runtime.telemetry.log_events import FanOut, LogEvents
from sandkasten_server.api.http_limits import HttpLimits
from sandkasten_server.api.request.authentication import Doorkeeper
from sandkasten_server.api.request.request_lifecycle import RefusalLines
from sandkasten_server.api.response.docs_page import CSP, page
from sandkasten_server.api.routes import health, ports, system
from sandkasten_server.api.server_context import ObservedHealth
from sandkasten_server.daemon.metrics import Metrics
from tests.api.daemon_in_process import serving
from tests.api.daemon_with_database import AS_OPERATOR, booked, new_key
from tests.api.raw import say


async def test_a_daemon_is_ready_until_it_drains(daemon):
    ready = await daemon.ask("GET", "/readyz")
    assert (ready.status, ready.json["status"]) == (200, "ready")
    assert ready.json["backend"] == "unisolated"
    daemon.server.draining = True
    gone = await daemon.ask("GET", "/readyz")
    assert (gone.status, gone.json["code"]) == (503, "BUSY")
    assert gone.headers["Retry-After"]
    assert (await daemon.ask("GET", "/healthz")).status == 200


async def test_doctor_tells_what_the_machine_lacks_at_intervals(daemon, monkeypatch):
    looks = []
    lacking = Requirement("bubblewrap", False, "not installed", "install it")
    tier = Tier("unisolated", "unisolated", ready=False, reason="no bubblewrap", default=True)

    async def probe(backend=None):
        looks.append("probe")
        return Readiness(False, "no bubblewrap", "install it", (lacking,), (Unenforced("disk"),))

    async def tiers(*, measure=True):
        looks.append(measure)
        return [tier]

    monkeypatch.setattr(daemon.server.engine, "probe_required", probe)
    monkeypatch.setattr(daemon.server.engine, "tiers", tiers)
    replies = await asyncio.gather(*(daemon.ask("GET", "/v1/doctor") for _ in range(3)))
    assert looks == ["probe", False]
    for reply in replies:
        assert (reply.status, reply.json["ready"]) == (200, False)
        assert set(reply.json) == set(health.Doctor.model_fields)
        assert set(reply.json["tiers"][0]) == set(health.TierLine.model_fields)
        assert set(reply.json["requirements"][0]) == set(health.RequirementLine.model_fields)
        assert set(reply.json["unenforced"][0]) == set(health.UnenforcedLimit.model_fields)
    daemon.server.health.machine._last = (-health.PROBE_FOR_S, {})
    assert (await daemon.ask("GET", "/v1/doctor")).json["reason"] == "no bubblewrap"
    assert looks == ["probe", False] * 2


@pytest.mark.promise("P05")
async def test_backends_are_listed_with_reasons_for_the_operator_alone(
    engine, tmp_path, monkeypatch
):
    looks = []

    async def reports() -> list[BackendReport]:
        looks.append("look")
        reason = "no socket at /run/secret.sock"
        docker = BackendReport(
            "docker",
            reason=reason,
            remedy="start it",
            features=CAPABILITIES["docker"].features,
            sandboxes=3,
        )
        return [BackendReport("local", True, "standard", ready=True), docker]

    monkeypatch.setattr(engine, "backends", reports)
    async with booked(engine, tmp_path / "data") as daemon:
        theirs = await new_key(daemon, tenant="acme")
        told = await daemon.ask("GET", "/v1/backends", headers=AS_OPERATOR)
        assert (told.status, told.json["count"]) == (200, 2)
        local, docker = told.json["backends"]
        assert set(local) == set(health.BackendLine.model_fields)
        assert set(local["features"]) == set(health.FeaturesLine.model_fields)
        assert (docker["name"], docker["ready"], docker["remedy"]) == ("docker", False, "start it")
        seen = await daemon.ask("GET", "/v1/backends", headers=theirs)
        assert seen.json["backends"][1]["features"] == docker["features"]
        assert (docker["sandboxes"], seen.json["backends"][1]["sandboxes"]) == (3, None)
        assert b"secret.sock" not in seen.raw
        assert looks == ["look"]


async def test_a_stopping_daemon_starts_nothing_new(daemon):
    box = f"/v1/sessions/{await daemon.session()}"
    daemon.server.draining = True
    for path, body in (("/v1/sessions", {}), (f"{box}/exec", {"cmd": "true"})):
        refused = await daemon.ask("POST", path, body)
        assert (refused.status, refused.json["code"]) == (503, "BUSY")
        assert refused.json["retryable"] is True
    assert (await daemon.ask("GET", box)).status == 200
    assert (await daemon.ask("DELETE", box)).status == 200


async def test_an_unready_backend_is_probed_at_intervals(daemon, monkeypatch):
    looks = []

    async def probe(backend=None):
        looks.append(backend)
        if len(looks) > 1:
            raise BackendUnavailable("gone")
        return Readiness(False, reason="no bubblewrap")

    monkeypatch.setattr(daemon.server.engine, "probe_required", probe)
    for _ in range(3):
        reply = await daemon.ask("GET", "/readyz")
        assert (reply.status, reply.json["code"]) == (503, "BACKEND_UNAVAILABLE")
        assert "no bubblewrap" in reply.json["message"]
    assert len(looks) == 1


@pytest.mark.promise("P57")
async def test_an_unavailable_backend_that_is_not_the_default_is_reported(daemon, monkeypatch):
    assert (await daemon.ask("GET", "/readyz")).json["degraded"] == []
    away = BackendUnavailable("no engine answers", hint="start it", backend="docker")
    monkeypatch.setattr(daemon.server.engine, "degraded", lambda: [away])
    reply = await daemon.ask("GET", "/readyz")
    assert reply.status == 200
    assert reply.json["degraded"] == [
        {"backend": "docker", "reason": "no engine answers", "hint": "start it"}
    ]


@pytest.mark.promise("P57")
async def test_reasons_of_readiness_are_for_the_operator(engine, tmp_path, monkeypatch):
    """A reason can have the address of a Docker Engine or of a database."""
    async with booked(engine, tmp_path / "data") as daemon:
        tenant = await new_key(daemon, tenant="alpha", scopes=["sessions"])
        error = BackendUnavailable("no answer of tcp://10.0.0.9", hint="ask it", backend="docker")
        monkeypatch.setattr(daemon.server.engine, "degraded", lambda: [error])
        for headers in ({}, tenant, {"Authorization": "Bearer wrong"}):
            reply = await daemon.ask("GET", "/readyz", headers=headers)
            assert reply.json["degraded"] == [{"backend": "docker", "reason": "", "hint": ""}]
        reply = await daemon.ask("GET", "/readyz", headers=AS_OPERATOR)
        assert b"10.0.0.9" in reply.raw

        async def probe():
            return Readiness(False, reason="no answer of tcp://10.0.0.9")

        monkeypatch.setattr(daemon.server.engine, "probe_required", probe)
        daemon.server.health = ObservedHealth()
        for headers in ({}, tenant):
            reply = await daemon.ask("GET", "/readyz", headers=headers)
            assert reply.status == 503
            assert b"10.0.0.9" not in reply.raw
        reply = await daemon.ask("GET", "/readyz", headers=AS_OPERATOR)
        assert b"10.0.0.9" in reply.raw


async def test_the_document_and_its_page_are_made_once(daemon, monkeypatch):
    made = []
    for name in ("document", "page"):
        original = getattr(system, name)

        def counted(*given, name=name, original=original):
            made.append(name)
            return original(*given)

        monkeypatch.setattr(system, name, counted)
    daemon.server.facts.version = "made-once"
    paths = ["/docs", "/openapi.json"] * 3
    replies = await asyncio.gather(*(daemon.ask("GET", path) for path in paths))
    assert [reply.status for reply in replies] == [200] * 6
    assert made == ["document", "page"]
    assert replies[1].json["info"]["version"] == "made-once"


async def test_the_version_is_returned(daemon):
    daemon.server.facts.version = "1.2.3"
    assert (await daemon.ask("GET", "/v1/version")).json["version"] == "1.2.3"
    assert (await daemon.ask("GET", "/openapi.json")).json["info"]["version"] == "1.2.3"


async def test_the_docs_page_describes_every_route_and_fetches_nothing(daemon):
    reply = await daemon.ask("GET", "/docs")
    assert reply.headers["Content-Security-Policy"] == CSP
    assert "default-src 'none'" in CSP
    text = reply.raw.decode()
    for path in (await daemon.ask("GET", "/openapi.json")).json["paths"]:
        assert path in text
    assert "<script" not in text
    assert re.findall(r"(?:src|href)=.(?!#|/openapi)", text) == []


def test_the_docs_page_escapes_its_content():
    evil = "<img src=x onerror=alert(1)>"
    document = {
        "info": {"title": evil, "summary": evil, "version": evil},
        "tags": [{"name": evil}],
        "paths": {
            evil: {
                "get": {
                    "tags": [evil],
                    "summary": evil,
                    "description": evil,
                    "x-scope": evil,
                    "parameters": [
                        {"name": evil, "in": evil, "schema": {"type": evil}, "description": evil}
                    ],
                    "requestBody": {"content": {evil: {"schema": {"$ref": evil}}}},
                    "responses": {evil: {"description": evil, "content": {evil: {}}}},
                }
            }
        },
        "components": {"schemas": {evil: {"description": evil, "type": evil}}},
    }
    assert b"<img" not in page(document)


@pytest.fixture
async def metered_daemon(tmp_path):
    metrics = Metrics("1.0")
    events = FanOut(LogEvents(), metrics)
    engine = await open_engine(
        settings(ServerAddress(str(tmp_path / "data"), "unisolated")), events=events
    )
    async with serving(engine, metrics=metrics, events=events) as one:
        yield one
    for info in await engine.list(all=True):
        await engine.destroy(info.id)
    await engine.aclose()


def _figures(text: str) -> dict[str, float]:
    pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


@pytest.mark.promise("P71")
async def test_metrics_count_events(metered_daemon):
    box = f"/v1/sessions/{await metered_daemon.session()}"
    await metered_daemon.ask("POST", f"{box}/exec", {"cmd": "echo four"})
    await metered_daemon.ask("POST", f"{box}/exec", {"cmd": "sleep 9", "timeout_ms": 50})
    await metered_daemon.ask("POST", "/v1/run", {"code": "echo a", "runtime": "sh"})
    await metered_daemon.ask("POST", "/v1/run", {"code": "exit 1", "runtime": "sh"})
    await metered_daemon.ask("GET", "/v1/sessions/sbx_0000000000000000")
    reply = await metered_daemon.ask("GET", "/metrics")
    assert reply.headers["Content-Type"].startswith("text/plain")
    found = _figures(reply.raw.decode())
    assert found['station_sandbox_runs_total{ok="true",runtime="sh"}'] == 1
    assert found['station_sandbox_runs_total{ok="false",runtime="sh"}'] == 1
    assert found['station_sandbox_run_duration_ms_count{runtime="sh"}'] == 2
    assert found['sandkasten_sessions{backend="unisolated",state="running"}'] == 1
    pooled = found.get('sandkasten_create_seconds_count{source="pool"}', 0)
    assert found['sandkasten_create_seconds_count{source="cold"}'] + pooled == 3
    assert found['sandkasten_exec_seconds_count{status="timed_out"}'] == 1
    assert found['sandkasten_output_bytes_total{stream="stdout"}'] == 7
    assert found['sandkasten_errors_total{code="SESSION_NOT_FOUND"}'] == 1
    route = 'method="POST",route="/v1/sessions/{id}/exec",status="200"'
    assert found[f"sandkasten_http_request_seconds_count{{{route}}}"] == 2
    await metered_daemon.ask("DELETE", box)
    found = _figures((await metered_daemon.ask("GET", "/metrics")).raw.decode())
    assert found['sandkasten_sessions{backend="unisolated",state="running"}'] == 0


@pytest.mark.promise("P71")
async def test_metrics_do_not_grow_with_unknown_routes_methods_and_statuses(metered_daemon):
    box = f"/v1/sessions/{await metered_daemon.session()}"
    reached: list[int] = []

    async def inner(call, the_id, target):
        reached.append(int(target.path.removeprefix("/")))
        return Response(status_code=reached[-1])

    async def round_(first: int) -> int:
        for n in range(first, first + 20):
            for method in ("GET", "POST", "PROPFIND", "MKCOL", "REPORT"):
                path = f"/nothing-{n}/{n}"
                assert (await metered_daemon.ask(method, path)).status == 404
            await metered_daemon.ask("PUT", "/v1/sessions")
            for method in ("GET", "SEARCH", "LINK"):
                url = f"{metered_daemon.url}{box}/ports/1/{n + 200}"
                await (await metered_daemon.http.request(method, url)).read()
        text = (await metered_daemon.ask("GET", "/metrics")).raw.decode()
        return len([line for line in text.splitlines() if "_http_" in line])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ports, "forward", inner)
        # Its own line is in the next one.
        await metered_daemon.ask("GET", "/metrics")
        before = await round_(5)
        assert await round_(30) == before
    assert len(set(reached)) == 40


@pytest.mark.promise("P71")
async def test_every_request_has_one_line_in_the_log(engine, caplog):
    row = KeyRow("key_1", "t1", "n", SCOPES, 0.0, TenantQuota())
    keeper = Doorkeeper(clock=SystemClock(), keys=_OneKey(row))  # type: ignore[arg-type]
    caplog.set_level("INFO", logger="sandkasten.api")
    async with serving(engine, doorkeeper=keeper) as daemon:
        key = {"Authorization": "Bearer sk-any"}
        path = "/v1/sessions/sbx_0000000000000000"
        await daemon.ask("GET", path + "?a%0ab=%1b", headers={**key, "X-Request-Id": "mine"})
        await daemon.ask("GET", "/v1/no%0athing", headers=key)
        await daemon.ask("GET", "/v1/version", headers={"X-Request-Id": "a\tb"})
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await daemon.http.ws_connect(daemon.url + path + "/pty", headers=key)
        await say(daemon.port, b"GET / HTTP/1.1\r\n\0\r\n")
    records = [r for r in caplog.records if r.getMessage() == "http.request"]
    lines = [r.sandkasten for r in records]
    shown = "".join(map(JsonLines().format, records))
    assert shown.isprintable()
    assert not any(one in shown for one in ("sk-any", "sbx_", "thing", "a\\nb"))
    assert all(one.pop("ms") >= 0 for one in lines)
    assert lines.pop(0)["request_id"] == "mine"
    ids = [one.pop("request_id") for one in lines]
    assert all(re.fullmatch(r"req_[0-9a-f]{16}", one) for one in ids)
    assert lines == [
        _line("GET", "none", 404, ("key_1", "t1"), "NOT_FOUND"),
        _line("GET", "/v1/version", 200, (None, None), None),
        _line("WS", "/v1/sessions/{id}/pty", 404, ("key_1", "t1"), "SESSION_NOT_FOUND"),
        _line(None, "none", 400, (None, None), "INVALID_REQUEST"),
    ]


async def test_many_requests_without_a_key_have_few_lines(engine, caplog):
    row = KeyRow("key_1", "t1", "n", SCOPES, 0.0, TenantQuota())
    keeper = Doorkeeper(clock=SystemClock(), keys=_OneKey(row))  # type: ignore[arg-type]
    caplog.set_level("INFO", logger="sandkasten.api")
    async with serving(engine, doorkeeper=keeper) as daemon:
        for _ in range(60):
            assert (await daemon.ask("GET", "/v1/sessions")).status == 401
        key = {"Authorization": "Bearer sk-any"}
        assert (await daemon.ask("GET", "/v1/sessions", headers=key)).status == 200
    lines = [r.sandkasten for r in caplog.records if r.getMessage() == "http.request"]
    assert [one["status"] for one in lines] == [401] * 10 + [200]


def test_lines_of_refusals_are_bounded_by_address_and_in_number():
    now = 0.0
    lines = RefusalLines(lambda: now)
    assert [lines.left_out("a") for _ in range(60)] == [0] * 10 + [None] * 50
    assert lines.left_out("b") == 0
    now = 61.0
    assert [lines.left_out("a") for _ in range(2)] == [50, 0]
    for number in range(5000):
        lines.left_out(str(number))
    assert len(lines._windows) == 1024


async def test_probes_that_succeed_are_not_logged_by_default(daemon, caplog):
    caplog.set_level("DEBUG", logger="sandkasten.api")
    for path in ("/healthz", "/readyz"):
        assert (await daemon.ask("GET", path)).status == 200
    daemon.server.draining = True
    await daemon.ask("GET", "/readyz")
    lines = [one for one in caplog.records if one.getMessage() == "http.request"]
    assert [(one.sandkasten["route"], one.levelname) for one in lines] == [
        ("/healthz", "DEBUG"),
        ("/readyz", "DEBUG"),
        ("/readyz", "INFO"),
    ]


def _line(method, route, status, origin, code):
    key_id, tenant = origin
    line = {"method": method, "route": route, "status": status}
    return line | {"key_id": key_id, "tenant": tenant, "code": code}


class _OneKey:
    def __init__(self, row: KeyRow) -> None:
        self.row = row

    def check(self, hashed: bytes, now: float) -> KeyRow:
        return self.row


@pytest.mark.promise("P71")
async def test_two_engines_of_one_process_have_separate_metrics():
    one, other = Metrics(), Metrics()
    one.emit("pool.missed", {"reason": "not_ready"})
    counted = 'sandkasten_pool_misses_total{reason="not_ready"} 1.0'
    assert counted in one.render({}, NetworkCounts())[0].decode()
    assert counted not in other.render({}, NetworkCounts())[0].decode()


async def test_metrics_need_their_scope_unless_they_are_public(engine):
    closed = Doorkeeper(clock=SystemClock(), api_key="sk-secret")
    async with serving(engine, doorkeeper=closed, metrics=Metrics()) as daemon:
        assert (await daemon.ask("GET", "/metrics")).status == 401
        key = {"Authorization": "Bearer sk-secret"}
        assert (await daemon.ask("GET", "/metrics", headers=key)).status == 200
    rules = HttpLimits(metrics="open")
    async with serving(engine, doorkeeper=closed, metrics=Metrics(), rules=rules) as daemon:
        assert (await daemon.ask("GET", "/metrics")).status == 200
        assert (await daemon.ask("GET", "/v1/sessions")).status == 401
