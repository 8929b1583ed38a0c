"""Every operation against every quota and every scope.

A row states which quotas a route or a tool counts against, and why the others do not apply. A key
whose quota is 0 must be refused by the former and admitted by the latter. A route, a tool or a
quota without a row fails a test, so a new one cannot bypass quotas unnoticed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

import pytest

from sandkasten import SandboxClient
from sandkasten.client.run_once import run_async
from sandkasten.client.server.agents_transport import agents_of
from sandkasten.client.server.daemon_or_embedded import ServerAddress
from sandkasten.client.server.server_pool import open_transport
from sandkasten.errors import QuotaExceeded, SessionNotFound
from sandkasten.model.access.tenancy import SCOPES, TenantQuota
from sandkasten_agents.agent_assembly import agent_service
from sandkasten_runtime.assembly.backend_registry import prepare_data_dir
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_server.api.request.authentication import Doorkeeper
from sandkasten_server.api.routes.route_table import route_table
from sandkasten_server.daemon.persistent_stores import open_books
from sandkasten_tools.calls.tool_schemas import TOOLS
from sandkasten_tools.remote_caller import RemoteCaller, remote_shapes
from tests.agents.agency import environ_for, files_in, played, until
from tests.api.daemon_in_process import serving
from tests.api.daemon_with_database import AS_OPERATOR, OPERATOR, new_key
from tests.models.server import ScriptedModel
from tests.patience import PATIENCE_S
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.api.daemon_in_process import Daemon, Reply

AS_ACME = {**AS_OPERATOR, "X-Sandkasten-Tenant": "acme"}
QUOTAS: Final = {
    "sessions": "max_sessions",
    "memory": "max_memory_bytes",
    "disk": "max_disk_bytes",
    "rate": "requests_per_second",
    "network_connections": "max_network_connections",
    "network_bandwidth_bps": "max_network_bandwidth_bps",
    "network_bytes": "max_network_bytes_per_day",
}
"""`details.quota` of the error, and the field of `TenantQuota`."""
COUNTED: Final = ("sessions", "memory", "disk")
NETWORK: Final = ("network_connections", "network_bandwidth_bps", "network_bytes")
"""Of sandboxes with a network, which the backend of these tests does not give; they are in
tests/network/test_tenant_limits.py."""
SANDBOX: Final = frozenset(COUNTED)
DISK: Final = frozenset({"disk"})
NOTHING: Final[frozenset[str]] = frozenset()

LOOKS = "only reads"
ENDS = "only ends or removes"
INSIDE = "works inside a session that was counted when it was made"
RESERVED = "writes into the disk that the session or the workspace has reserved"
LENT = "uses a sandbox of the daemon, which is not counted and of which there are at most 16"
SHARED = "images are shared by all tenants and require the scope images"
BEGUN = "a run keeps the quota of the key that started it"


@dataclass(frozen=True, slots=True)
class Row:
    """`costs`: the quotas it counts against. `why`: the reason the others do not apply."""

    route: str
    costs: frozenset[str] = NOTHING
    why: str = ""
    body: Any = None
    path: str | None = None
    """Path and query to request; the path of the route by default."""
    more: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the aiohttp request."""
    scopes: tuple[str, ...] = ()
    """Scopes required besides the scope of the route."""
    sent: bool = True
    """False: only listed, not requested."""

    @property
    def method(self) -> str:
        return self.route.partition(" ")[0]


def unsent(why: str, *routes: str) -> tuple[Row, ...]:
    return tuple(Row(route, why=why, sent=False) for route in routes)


S, W = "/v1/sessions/{id}", "/v1/workspaces/{id}"
AGENT = {"agent_name": "writer", "task": "x"}
FLOW = {"workflow_id": "flow", "input": {"text": "x"}}
TAR = {"headers": {"Content-Type": "application/x-tar"}, "data": b"\0" * 10240}

ROWS: Final[tuple[Row, ...]] = (
    # ---- creates sandboxes
    Row("POST /v1/sessions", SANDBOX, body={}),
    Row("POST /v1/sessions", SANDBOX, body={"workspace_id": "fresh"}),
    Row(
        "POST /v1/sessions",
        frozenset({"sessions", "memory"}),
        "an existing workspace takes no more disk",
        body={"workspace_id": "there"},
    ),
    Row("POST /v1/run", SANDBOX, body={"code": "true", "runtime": "sh"}),
    Row("POST /v1/run", SANDBOX, body={"code": "", "runtime": "sh", "workspace_id": "new"}),
    Row(
        "POST /v1/run",
        frozenset({"sessions", "memory"}),
        "an existing workspace takes no more disk",
        body={"code": "true", "runtime": "sh", "workspace_id": "there"},
    ),
    # ---- stores bytes
    Row("POST /v1/files", DISK, "creates no sandbox", more={"data": b"bytes"}),
    Row(
        f"POST {S}/files/publish",
        DISK,
        INSIDE,
        body={"source": "hello.txt"},
        scopes=("files",),
    ),
    Row("POST /v1/workspaces", DISK, "creates no sandbox", body={"name": "more", "size_mb": 16}),
    Row(f"POST {W}/copy", DISK, "creates no sandbox", body={"name": "copied"}),
    Row(f"POST {W}/resize", DISK, "creates no sandbox", body={"size_mb": 32}),
    # ---- starts commands and writes files within what is already counted
    Row(f"POST {S}/exec", why=INSIDE, body={"cmd": ["true"]}),
    Row(f"POST {S}/exec/stream", why=INSIDE, body={"cmd": ["true"]}),
    Row(f"POST {S}/files/stage", why=RESERVED, scopes=("files",),
        body={"file_key": "stored", "destination": "staged"}),
    Row(f"POST {S}/fs/write", why=RESERVED, body={"path": "a", "text": "a"}),
    Row(f"PUT {S}/fs/file", why=RESERVED, path=f"{S}/fs/file?path=b", more={"data": b"b"}),
    Row(f"POST {S}/fs/mkdir", why=RESERVED, body={"path": "d"}),
    Row(f"POST {S}/fs/move", why=RESERVED, body={"source": "a", "destination": "c"}),
    Row(f"POST {S}/fs/upload", why=RESERVED, path=f"{S}/fs/upload?path=.", more=TAR),
    Row(f"POST {W}/fs/write", why=f"{LENT}; {RESERVED}", body={"path": "a", "text": "a"}),
    Row(f"PUT {W}/fs/file", why=f"{LENT}; {RESERVED}", path=f"{W}/fs/file?path=b",
        more={"data": b"b"}),
    Row(f"POST {W}/fs/mkdir", why=f"{LENT}; {RESERVED}", body={"path": "d"}),
    Row(f"POST {W}/fs/move", why=f"{LENT}; {RESERVED}", body={"source": "a", "destination": "c"}),
    Row(f"POST {W}/fs/upload", why=f"{LENT}; {RESERVED}", path=f"{W}/fs/upload?path=.", more=TAR),
    Row(f"GET {W}/fs", why=LENT),
    *unsent("is counted: tests/local/test_snapshots.py", f"POST {S}/snapshots"),
    *unsent(f"{LENT}; {LOOKS}", f"GET {W}/fs/read", f"GET {W}/fs/list", f"GET {W}/fs/stat",
            f"GET {W}/fs/download"),
    *unsent(f"{LENT}; {ENDS}", f"POST {W}/fs/delete", f"DELETE {W}/fs"),
    *unsent(
        INSIDE, f"WS {S}/pty", f"ANY {S}/ports/{{port}}", f"WS {S}/ports/{{port}}",
        f"ANY {S}/ports/{{port}}/{{rest:path}}", f"WS {S}/ports/{{port}}/{{rest:path}}",
        f"POST {S}/execs/{{eid}}/stdin", f"POST {S}/execs/{{eid}}/close-stdin",
        f"POST {S}/execs/{{eid}}/signal", f"POST {S}/pause", f"POST {S}/resume",
        f"POST {S}/reclaim", f"PATCH {S}", f"POST {S}/code", f"POST {S}/contexts",
        f"POST {S}/contexts/{{cid}}/restart", f"POST {S}/contexts/{{cid}}/interrupt",
        f"POST {S}/previews", f"WS {S}/tunnels/{{port}}",
        f"DELETE {S}/previews", f"DELETE {S}/previews/{{link}}",
    ),
    # ---- agents: the run starts, and its tool calls are refused
    *(
        Row(f"POST {at}{route}", SANDBOX, body=body)
        for at in ("", "/v1")
        for route, body in (("/execute", AGENT), ("/workflow-runs", FLOW))
    ),
    *unsent("each copy is counted: tests/local/test_forks.py", f"POST {S}/fork"),
    *unsent(BEGUN, "POST /workflow-runs/{run_id}/resume", "POST /v1/workflow-runs/{run_id}/resume"),
    # ---- the rest
    *unsent(SHARED, "POST /v1/images/pull", "POST /v1/images/build", "POST /v1/images/import",
            "POST /v1/images/tag", "POST /v1/images/collect", "DELETE /v1/images/{name:path}"),
    *unsent("requires the scope admin", "POST /v1/keys", "DELETE /v1/keys/{id}"),
    *unsent("is bounded in number and time", "POST /v1/login", "DELETE /v1/login",
            "POST /v1/tickets"),
    *unsent("requires the scope secrets, and is bounded", "POST /v1/secrets"),
    *unsent(ENDS, f"DELETE {S}", "DELETE /v1/files/{key:path}", f"POST {S}/fs/delete",
            f"DELETE {S}/fs", f"DELETE {W}", "DELETE /v1/secrets/{name}",
            "DELETE /v1/snapshots/{id}",
            f"DELETE {S}/contexts/{{cid}}", f"DELETE {S}/shells/{{name}}"),
    *unsent(
        LOOKS, "GET /v1/sessions", f"GET {S}", f"GET {S}/execs", f"GET {S}/execs/{{eid}}",
        f"GET {S}/execs/{{eid}}/output", f"GET {S}/stats", f"GET {S}/processes",
        f"GET {S}/network", f"GET {S}/network/log", "GET /v1/usage", f"GET {S}/contexts",
        f"GET {S}/languages",
        f"GET {S}/fs/read", f"GET {S}/fs/list", f"GET {S}/fs/stat", f"GET {S}/fs/download",
        f"GET {S}/fs/watch", "GET /v1/files", "GET /v1/files/{key:path}",
        "HEAD /v1/files/{key:path}", "GET /v1/keys", "GET /v1/audit", "GET /v1/workspaces",
        "GET /v1/audit/verify", "GET /v1/audit/export", f"GET {S}/recordings",
        f"GET {S}/recordings/{{eid}}",
        f"GET {W}", "GET /v1/images", "GET /v1/images/usage", "GET /v1/images/{name:path}",
        "GET /v1/tools", "GET /metrics", "GET /healthz", "GET /readyz", "GET /openapi.json",
        "GET /docs", "GET /", "GET /dashboard/{name}", "GET /v1/login",
        "GET /v1/version", "GET /v1/settings", "GET /v1/doctor", "GET /v1/secrets",
        "GET /v1/backends", "GET /v1/snapshots", "GET /v1/snapshots/{id}",
    ),
    *(
        row
        for at in ("", "/v1")
        for row in (
            *unsent(LOOKS, *(f"GET {at}{path}" for path in (
                "/runs", "/runs/{run_id}", "/runs/{run_id}/events", "/workflow-runs",
                "/workflow-runs/{run_id}", "/workflow-runs/{run_id}/events", "/agents",
                "/agents/{name}", "/workflows", "/workflows/{name}",
            ))),
            *unsent(LOOKS, f"POST {at}/agents/validate", f"POST {at}/workflows/validate"),
            *unsent(ENDS, f"POST {at}/runs/{{run_id}}/cancel",
                    f"POST {at}/workflow-runs/{{run_id}}/cancel"),
        )
    ),
)  # fmt: skip
TOOL_ROUTE: Final = "POST /v1/tools/{name}"


@dataclass(frozen=True, slots=True)
class ToolRow:
    """`arguments` are valid in a sandbox that contains the file hello.txt."""

    arguments: dict[str, Any]
    opens: bool = True
    """Creates its sandbox on first use."""
    costs: frozenset[str] = NOTHING
    """Quotas it counts against in an existing sandbox."""
    scopes: tuple[str, ...] = ()


TOOL_ROWS: Final[dict[str, ToolRow]] = {
    "sandbox_run": ToolRow({"code": "true", "runtime": "sh"}, costs=SANDBOX),
    "sandbox_open": ToolRow({}),
    "sandbox_exec": ToolRow({"cmd": ["true"]}),
    "sandbox_exec_read": ToolRow({"exec_id": "unknown"}),
    "sandbox_exec_wait": ToolRow({"exec_id": "unknown", "timeout_seconds": 1}),
    "sandbox_code": ToolRow({"code": "1", "context": "unknown"}),
    "sandbox_fs_write": ToolRow({"path": "a", "contents": "a"}),
    "sandbox_fs_read": ToolRow({"path": "hello.txt"}),
    "sandbox_fs_list": ToolRow({}),
    "sandbox_fs_delete": ToolRow({"path": "hello.txt"}),
    "sandbox_stage_file": ToolRow({"file_key": "stored", "destination": "b"}, scopes=("files",)),
    "sandbox_publish_file": ToolRow({"source": "hello.txt"}, costs=DISK, scopes=("files",)),
    "sandbox_close": ToolRow({}, opens=False),
}


@asynccontextmanager
async def whole_daemon(directory) -> AsyncIterator[Daemon]:
    """Serve engine, database, agents and HTTP, composed as in `serve`."""
    files_in(directory)
    async with ScriptedModel(played) as model:
        settings = load(
            {"data_dir": str(directory / "data"), "backend": "local"},
            environ_for(directory, model),
            directory,
        )
        prepare_data_dir(settings.data_dir)
        clock = SystemClock()
        async with open_books(settings, clock) as books:
            engine = await open_engine(settings, journal=books.journal, stored_files=books.files)
            try:
                await engine.recover()
                async with (
                    agent_service(settings, engine, books.files, recovers=True) as agents,
                    serving(
                        engine,
                        doorkeeper=Doorkeeper(clock=clock, keys=books.keys, api_key=OPERATOR),
                        journal=books.journal,
                        keys=books.keys,
                        files=books.files,
                        agents=agents,
                    ) as daemon,
                ):
                    yield daemon
            finally:
                for info in await engine.list(all=True):
                    # One may end by itself meanwhile.
                    with suppress(SessionNotFound):
                        await engine.destroy(info.id)
                await engine.aclose()


@pytest.fixture
async def daemon(tmp_path):
    async with whole_daemon(tmp_path) as one:
        yield one


async def prepared_session(daemon: Daemon) -> str:
    """Create a session with a file, a workspace and a stored file for acme; return its id."""
    made = await daemon.ask("POST", "/v1/sessions", {}, headers=AS_ACME)
    assert made.status == 201, made.raw
    at = f"/v1/sessions/{made.json['id']}"
    body: dict[str, Any] = {"path": "hello.txt", "text": "hello"}
    assert (await daemon.ask("POST", f"{at}/fs/write", body, headers=AS_ACME)).status == 200
    body = {"name": "there", "size_mb": 16}
    assert (await daemon.ask("POST", "/v1/workspaces", body, headers=AS_ACME)).status == 201
    stored = await daemon.ask("POST", "/v1/files?key=stored", data=b"stored", headers=AS_ACME)
    assert stored.status == 201, stored.raw
    return str(made.json["id"])


async def acme_key(daemon: Daemon, scopes: object, **quota: float) -> dict[str, str]:
    return await new_key(daemon, tenant="acme", scopes=sorted(scopes), quota=quota)  # type: ignore[call-overload]


def scopes_of(row: Row) -> set[str]:
    [scope] = {
        route.scope for route in route_table().routes if f"{route.method} {route.path}" == row.route
    }
    return {scope or "sessions", *row.scopes}


async def send(daemon: Daemon, row: Row, session: str, headers: dict[str, str]) -> Reply:
    path = row.path if row.path is not None else row.route.partition(" ")[2]
    path = path.replace(S, f"/v1/sessions/{session}").replace(W, "/v1/workspaces/there")
    more = {**row.more, "headers": {**row.more.get("headers", {}), **headers}}
    reply = await daemon.ask(row.method, path, row.body, **more)
    if row.route == "POST /v1/sessions" and reply.status == 201:
        # The next row wants its workspace.
        await daemon.ask("DELETE", f"/v1/sessions/{reply.json['id']}", headers=AS_ACME)
    return reply


async def refused_by(daemon: Daemon, reply: Reply) -> str | None:
    """Return the quota that refused the request, or a tool call of the run it started."""
    if reply.status == 202:
        return await _refused_in_run(daemon, reply.json["run_id"])
    if reply.status < 300:
        return None
    assert reply.json["code"] == "QUOTA_EXCEEDED", reply.raw
    return str(reply.json["details"]["quota"])


async def _refused_in_run(daemon: Daemon, run_id: str) -> str | None:
    headers = {**AS_ACME, "Accept": "text/event-stream"}
    async with daemon.http.get(f"{daemon.url}/runs/{run_id}/events", headers=headers) as following:
        await following.read()
    rows = (await daemon.ask("GET", "/runs?limit=100", headers=AS_ACME)).json["runs"]
    runs = [one["id"] for one in rows if run_id in (one["id"], one["parent_id"])]
    for one in runs:
        page = await daemon.ask("GET", f"/runs/{one}/events", headers=AS_ACME)
        for event in page.json["events"]:
            if "QUOTA_EXCEEDED" in json.dumps(event):
                [quota] = [name for name in QUOTAS if f'"quota": "{name}"' in _plain(event)]
                return quota
    return None


def _plain(event: object) -> str:
    """Return the event as JSON, with the JSON inside its strings unescaped."""
    return json.dumps(event).replace("\\", "").replace('":"', '": "')


def test_every_route_has_a_row():
    there = {f"{route.method} {route.path}" for route in route_table().routes}
    assert there == {row.route for row in ROWS} | {TOOL_ROUTE}


def test_every_tool_has_a_row():
    assert set(TOOLS) == set(TOOL_ROWS)


def test_every_quota_has_a_column():
    assert {one.name for one in fields(TenantQuota)} == set(QUOTAS.values())
    assert set(COUNTED) == set(QUOTAS) - {"rate", *NETWORK}


def test_every_quota_that_does_not_apply_has_a_reason():
    assert [row for row in ROWS if row.costs != SANDBOX and not row.why] == []


SENT = tuple(row for row in ROWS if row.sent)


@pytest.mark.parametrize("quota", COUNTED)
@pytest.mark.usefixtures("patient_streams")
@pytest.mark.slow
async def test_zero_quota_refuses_what_costs_something(daemon, quota):
    session = await prepared_session(daemon)
    keys: dict[frozenset[str], dict[str, str]] = {}
    wrong = []
    for row in SENT:
        scopes = frozenset(scopes_of(row))
        if scopes not in keys:
            keys[scopes] = await acme_key(daemon, scopes, **{QUOTAS[quota]: 0})
        by = await refused_by(daemon, await send(daemon, row, session, keys[scopes]))
        if by != (quota if quota in row.costs else None):
            wrong.append((row.route, row.body, by))
    assert wrong == []


@pytest.mark.slow
async def test_key_without_quota_is_never_refused(daemon):
    session = await prepared_session(daemon)
    for row in SENT:
        key = await acme_key(daemon, scopes_of(row))
        reply = await send(daemon, row, session, key)
        assert await refused_by(daemon, reply) is None, row


async def test_missing_scope_is_refused_on_every_route(daemon):
    session = await prepared_session(daemon)
    without = {scope: await acme_key(daemon, SCOPES - {scope, "admin"}) for scope in SCOPES}
    for route in route_table().routes:
        if route.scope is None or route.scope == "any key":
            continue
        path = route.path.replace("{id}", session).replace(":path}", "}")
        if route.method == "WS":
            async with daemon.http.get(
                f"{daemon.url}{path}", headers={**without[route.scope], **UPGRADE}
            ) as answer:
                assert answer.status == 403, route.path
            continue
        method = "GET" if route.method == "ANY" else route.method
        refused = await daemon.ask(method, path, headers=without[route.scope])
        assert refused.status == 403, (route.method, route.path)
        if method != "HEAD":
            body = (refused.json["code"], refused.json["details"])
            assert body == ("FORBIDDEN", {"scope": route.scope}), (route.method, route.path)


UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


async def test_operation_with_two_scopes_requires_both(daemon):
    session = await prepared_session(daemon)
    for row in SENT:
        for scope in row.scopes:
            key = await acme_key(daemon, scopes_of(row) - {scope})
            refused = await send(daemon, row, session, key)
            assert (refused.status, refused.json["details"]) == (403, {"scope": scope}), row
    for name, tool in TOOL_ROWS.items():
        for scope in tool.scopes:
            key = await acme_key(daemon, {"sessions", *tool.scopes} - {scope})
            body = {"arguments": tool.arguments}
            refused = await daemon.ask("POST", f"/v1/tools/{name}", body, headers=key)
            assert (refused.status, refused.json["details"]) == (403, {"scope": scope}), name


async def test_exceeded_rate_is_refused_on_every_route(daemon):
    session = await prepared_session(daemon)
    # The first request empties the bucket for a thousand seconds.
    key = await acme_key(daemon, SCOPES, requests_per_second=0.001)
    assert (await daemon.ask("GET", "/v1/sessions", headers=key)).status == 200
    for route in route_table().routes:
        if route.scope is None or route.method == "WS":
            continue
        method = "GET" if route.method == "ANY" else route.method
        path = route.path.replace("{id}", session).replace(":path}", "}")
        refused = await daemon.ask(method, path, headers=key)
        assert refused.status == 429, (route.method, route.path)
        if method != "HEAD":
            assert refused.json["details"]["quota"] == "rate", (route.method, route.path)


@pytest.mark.parametrize("quota", few(COUNTED, 1))
@pytest.mark.parametrize("through", ["http", "mcp"])
async def test_tools_respect_the_quota_of_the_key(daemon, quota, through):
    await prepared_session(daemon)
    free = await acme_key(daemon, {"sessions", "files"})
    key = await acme_key(daemon, {"sessions", "files"}, **{QUOTAS[quota]: 0})
    async with tool_caller(daemon, key, through) as call:
        for name, tool in TOOL_ROWS.items():
            new = await call(name, tool.arguments, f"new-{name}")
            applies = tool.opens or quota in tool.costs
            assert _refusing_quota(new) == (quota if applies else None), (name, new)
            there = {"arguments": {"path": "hello.txt", "contents": "x"}, "session": f"old-{name}"}
            opened = await daemon.ask("POST", "/v1/tools/sandbox_fs_write", there, headers=free)
            assert opened.json["ok"], opened.raw
            again = await call(name, tool.arguments, f"old-{name}")
            assert _refusing_quota(again) == (quota if quota in tool.costs else None), (name, again)


@asynccontextmanager
async def tool_caller(daemon: Daemon, key: dict[str, str], through: str) -> AsyncIterator[Any]:
    if through == "http":

        async def by_http(name: str, arguments: object, session: str) -> Any:
            body = {"arguments": arguments, "session": session}
            return (await daemon.ask("POST", f"/v1/tools/{name}", body, headers=key)).json

        yield by_http
        return
    place = ServerAddress(url=daemon.url, api_key=key["Authorization"].removeprefix("Bearer "))
    async with agents_of(place) as agents:
        sandboxes = await open_transport(place)
        try:
            shapes = await remote_shapes(agents, "all")

            async def by_mcp(name: str, arguments: Any, session: str) -> Any:
                caller = RemoteCaller(agents, sandboxes, shapes, session=session)
                return await caller.call(name, arguments)

            yield by_mcp
        finally:
            await sandboxes.aclose()


def _refusing_quota(answer: Any) -> str | None:
    if answer.get("code") == "QUOTA_EXCEEDED":
        return str(answer["details"]["quota"])
    return None


async def test_concurrent_one_shots_count_as_sessions(daemon):
    """The first one runs until its session is destroyed; meanwhile three more are refused."""
    key = await acme_key(daemon, {"sessions"}, max_sessions=1)
    body = {"code": "exec sleep 60", "runtime": "sh"}
    first = asyncio.create_task(daemon.ask("POST", "/v1/run", body, headers=key))
    async with asyncio.timeout(PATIENCE_S):
        while not (rows := await running(daemon)):
            assert not first.done(), first.result().raw
            await asyncio.sleep(0.02)
    more = await asyncio.gather(
        *(daemon.ask("POST", "/v1/run", body, headers=key) for _ in range(3))
    )
    assert [(one.status, one.json["details"]["quota"]) for one in more] == [(429, "sessions")] * 3
    await daemon.ask("DELETE", f"/v1/sessions/{rows[0]['id']}", headers=AS_ACME)
    await first
    body = {"code": "echo done", "runtime": "sh"}
    last = await daemon.ask("POST", "/v1/run", body, headers=key)
    assert (last.status, last.json["stdout"]) == (200, "done\n")


async def running(daemon: Daemon) -> list[dict[str, Any]]:
    rows = (await daemon.ask("GET", "/v1/sessions", headers=AS_ACME)).json
    return [row for row in rows if row["status"] == "running"]


async def test_journal_records_the_key_of_each_sandbox(daemon):
    key = await acme_key(daemon, {"sessions"})
    [row] = (await daemon.ask("GET", "/v1/keys?tenant=acme", headers=AS_OPERATOR)).json["keys"]
    ways: dict[str, dict[str, Any]] = {
        "/v1/sessions": {},
        "/v1/run": {"code": "true", "runtime": "sh"},
        "/v1/tools/sandbox_open": {"session": "one"},
        "/v1/tools/sandbox_run": {"arguments": {"code": "true", "runtime": "sh"}},
    }
    for count, (path, body) in enumerate(ways.items(), 1):
        assert (await daemon.ask("POST", path, body, headers=key)).status in (200, 201), path
        journal = daemon.server.stores.journal
        assert journal is not None
        await journal.flush()
        rows = await journal.sessions("acme")
        assert [one.key_id for one in rows] == [row["id"]] * count, path


@pytest.mark.parametrize("quota", COUNTED)
async def test_the_sdk_raises_quota_exceeded(daemon, quota):
    key = await acme_key(daemon, {"sessions", "files", "workspaces"}, **{QUOTAS[quota]: 0})
    api_key = key["Authorization"].removeprefix("Bearer ")
    async with SandboxClient(base_url=daemon.url, api_key=api_key) as client:
        with pytest.raises(QuotaExceeded) as refused:
            await client.create_session()
    assert refused.value.details["quota"] == quota
    with pytest.raises(QuotaExceeded) as refused:
        await run_async("true", "sh", url=daemon.url, api_key=api_key)
    assert refused.value.details["quota"] == quota


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--runtime", "sh", "-c", "true"),
        ("create",),
        ("workspace", "create", "new"),
        ("files", "put", "stored.txt"),
    ],
    ids=lambda command: command[0],
)
async def test_the_command_line_reports_the_quota(daemon, command, tmp_path):
    (tmp_path / "stored.txt").write_text("stored")
    key = await acme_key(daemon, {"sessions", "files", "workspaces"}, max_disk_bytes=0)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sandkasten_server.cli",
        *command,
        cwd=tmp_path,
        env={
            **os.environ,
            "SANDKASTEN_URL": daemon.url,
            "SANDKASTEN_API_KEY": key["Authorization"].removeprefix("Bearer "),
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode not in (0, None), out
    assert b"disk" in err, err
    assert b"hint:" in err, err


async def test_concurrent_uploads_share_one_quota(daemon, tmp_path):
    """All four are admitted while nothing is stored. What has arrived of the others counts, and so
    does what was stored meanwhile.
    """
    key = await acme_key(daemon, {"files"}, max_disk_bytes=1500)
    released = [asyncio.Event() for _ in range(4)]

    async def body(release: asyncio.Event) -> AsyncIterator[bytes]:
        yield b"x" * 300
        await release.wait()
        yield b"x" * 700

    async def upload(release: asyncio.Event) -> int:
        return (await daemon.ask("POST", "/v1/files", data=body(release), headers=key)).status

    uploads = [asyncio.create_task(upload(one)) for one in released]
    partial = tmp_path / "data" / "files" / "making"

    async def all_started() -> object:
        sizes = [one.stat().st_size for one in partial.iterdir()]
        return sizes == [300] * len(uploads) or sizes

    await until(all_started, "not every upload has started")
    statuses = []
    for release, one in zip(released, uploads, strict=True):
        release.set()
        statuses.append(await one)
    assert statuses == [507, 507, 201, 507]
    # Replacing a file counts what is there afterwards.
    files = (await daemon.ask("GET", "/v1/files", headers=key)).json["files"]
    path = f"/v1/files?key={files[0]['key']}&overwrite=true"
    assert (await daemon.ask("POST", path, data=b"x" * 1500, headers=key)).status == 201
    assert (await daemon.ask("POST", path, data=b"x" * 1501, headers=key)).status == 507


async def test_sandbox_created_during_an_upload_counts_for_it(daemon, tmp_path):
    key = await acme_key(daemon, {"files", "sessions"}, max_disk_bytes=16 << 20)
    created = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"x"
        await created.wait()
        yield b"x" * 1000

    upload = asyncio.create_task(daemon.ask("POST", "/v1/files", data=body(), headers=key))
    partial = tmp_path / "data" / "files" / "making"

    async def started() -> object:
        return len(os.listdir(partial)) == 1

    await until(started, "the upload has not started")
    sandbox = {"limits": {"workspace_mb": 16}}
    made = await daemon.ask("POST", "/v1/sessions", sandbox, headers=key)
    assert made.status == 201, made.raw
    created.set()
    refused = await upload
    assert (refused.status, refused.json["details"]) == (507, {"quota": "disk", "left": 0})
    # The other way round: what is stored counts for the next sandbox.
    await daemon.ask("DELETE", f"/v1/sessions/{made.json['id']}", headers=key)
    assert (await daemon.ask("POST", "/v1/files", data=b"x", headers=key)).status == 201
    assert (await daemon.ask("POST", "/v1/sessions", sandbox, headers=key)).status == 507
