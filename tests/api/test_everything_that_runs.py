"""Everything that can run something in a sandbox leaves one readable record of it, and no other.

A new route or tool must be added to WAYS, or to the names of those that run nothing themselves.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import pytest

from sandkasten_e2b.connect_codec import STREAM, envelope
from sandkasten_e2b.e2b_assembly import open_e2b
from sandkasten_server.api.routes.route_table import route_table
from sandkasten_tools.calls.tool_schemas import TOOLS
from tests.client.http.served import Served, served
from tests.patience import PATIENCE_S
from tests.repo import tree

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

pytestmark = pytest.mark.promise("P87")

CODE: Final = "# ways\nprint('way')"
ENV: Final = {"BASH_ENV": "/hush"}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("ways") / "data") as one:
        yield one


@dataclass(slots=True)
class Place:
    """A daemon, and a sandbox in it."""

    daemon: Served
    http: aiohttp.ClientSession
    box: str = ""

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
        given = {"Content-Type": "application/json", **headers}
        url = self.daemon.url + path
        async with self.http.request(method, url, data=data, headers=given) as found:
            raw = await found.read()
            assert found.status < 300, (path, raw)
            return json.loads(raw) if b"\n" not in raw and raw[:1] in b"{[" else raw

    async def of(self, verb: str, body: object = None, method: str = "POST") -> Any:
        return await self.ask(method, f"/v1/sessions/{self.box}/{verb}", body)

    async def tool(self, name: str, **arguments: object) -> Any:
        body = {"arguments": arguments, "session": "of-the-tools"}
        found = await self.ask("POST", f"/v1/tools/{name}", body)
        assert not found.get("error_code"), found
        return found

    async def envd(self, path: str, body: object, kind: str = "application/json") -> Any:
        """Send a request of E2B's protocol to the sandbox."""
        connected = await self.ask("POST", f"/e2b/sandboxes/{self.box}/connect", {"timeout": 600})
        data = envelope(body) if kind == STREAM else json.dumps(body).encode()
        headers = {"X-Access-Token": connected["envdAccessToken"], "E2b-Sandbox-Id": self.box}
        return await self.ask("POST", f"/e2b{path}", data, **headers, **{"Content-Type": kind})


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run something. `act` may return the id of the sandbox that it ran in."""

    act: Callable[[Place], Awaitable[Any]]
    command: str
    """A regular expression."""
    kind: str = "command"
    env: str | None = "BASH_ENV"
    """The names of the variables that were given with it, as they are recorded."""
    program: str | None = None
    """The code that the command line only names as a file."""


async def typed(place: Place) -> None:
    url = f"{place.daemon.url}/v1/sessions/{place.box}/pty?command=" + '["echo","way"]'
    url += "&env=" + json.dumps(ENV)
    async with place.http.ws_connect(url) as socket:
        async for _ in socket:
            pass


async def oneshot(place: Place) -> str:
    body = {"runtime": "bash", "code": "echo way", "env": ENV}
    return str((await place.ask("POST", "/v1/run", body))["sandbox_id"])


async def tool_run(place: Place) -> str:
    return str((await place.tool("sandbox_run", runtime="bash", code="echo way"))["sandbox_id"])


async def tool_exec(place: Place) -> str:
    return str((await place.tool("sandbox_exec", command="echo way", env=ENV))["sandbox_id"])


async def tool_code(place: Place) -> str:
    return str((await place.tool("sandbox_code", code=CODE, env=ENV))["sandbox_id"])


async def twice_by_key(place: Place) -> None:
    body = {"cmd": ["echo", "way"], "idempotency_key": "way", "env": ENV}
    await asyncio.gather(place.of("exec", body), place.of("exec", {**body, "background": True}))
    await place.of("exec", body)


def e2b_start(**more: object) -> dict[str, object]:
    process = {"cmd": "sh", "args": ["-c", "echo way"], "envs": ENV}
    return {"process": process, **more}


def sent(verb: str, body: object = None, method: str = "POST") -> Callable[[Place], Awaitable[Any]]:
    given = {**body, "env": ENV} if isinstance(body, dict) and body else body
    return lambda place: place.of(verb, given, method)


def to_envd(path: str, body: object, kind: str = "application/json") -> Any:
    return lambda place: place.envd(path, body, kind)


_RUN: Final = r"bash \S+\.sh"
# A shell of E2B's clients starts with its directory.
_E2B: Final = "BASH_ENV PWD"
_SH: Final = "sh -c 'echo way'"
PTY: Final = {"size": {"rows": 24, "cols": 80}}
WAYS: Final[dict[str, Way]] = {
    "POST /v1/sessions/{id}/exec": Way(sent("exec", {"cmd": ["echo", "way"]}), "echo way"),
    "exec, a string": Way(sent("exec", {"cmd": "echo way"}), "echo way"),
    "exec, several lines": Way(sent("exec", {"cmd": "cd .\necho way"}), "cd .\necho way"),
    "exec, a string in a new process": Way(
        sent("exec", {"cmd": "echo way", "stateful": False}), "echo way"
    ),
    "exec, in the background": Way(
        sent("exec", {"cmd": ["echo", "way"], "background": True}), "echo way"
    ),
    "exec, on a terminal": Way(sent("exec", {"cmd": ["echo", "way"], "pty": True}), "echo way"),
    "exec, streamed": Way(sent("exec", {"cmd": ["echo", "way"], "stream": True}), "echo way"),
    "exec, twice by its key": Way(twice_by_key, "echo way"),
    "POST /v1/sessions/{id}/exec/stream": Way(
        sent("exec/stream", {"cmd": ["echo", "way"]}), "echo way"
    ),
    "WS /v1/sessions/{id}/pty": Way(typed, "echo way"),
    "POST /v1/run": Way(oneshot, _RUN, env=None, program="echo way"),
    "POST /v1/sessions/{id}/code": Way(sent("code", {"code": CODE}), re.escape(CODE), "cell"),
    "POST /v1/sessions/{id}/contexts": Way(
        sent("contexts", {}), "python kernel", "kernel", env=None
    ),
    "GET /v1/sessions/{id}/languages": Way(
        sent("languages", method="GET"), "list of kernels", env=None
    ),
    "sandbox_run": Way(tool_run, _RUN, env=None, program="echo way"),
    "sandbox_exec": Way(tool_exec, "echo way"),
    "sandbox_code": Way(tool_code, re.escape(CODE), "cell"),
    "POST /e2b/process.Process/Start": Way(
        to_envd("/process.Process/Start", e2b_start(), STREAM), _SH, env=_E2B
    ),
    "E2B, on a terminal": Way(
        to_envd("/process.Process/Start", e2b_start(pty=PTY), STREAM), _SH, env=_E2B
    ),
    "POST /e2b/execute": Way(
        to_envd("/execute", {"code": CODE, "env_vars": ENV}), re.escape(CODE), "cell"
    ),
    "POST /e2b/contexts": Way(to_envd("/contexts", {}), "python kernel", "kernel", env=None),
}
# Agents and workflows run what their tools run; MCP and adapters of frameworks use the ways above.
# Packages and image builds run in sandboxes of their own, through the same two methods as commands.
# A restarted kernel is still that of its context.
THROUGH_OTHERS: Final = {
    "POST /execute",
    "POST /workflow-runs",
    "POST /workflow-runs/{run_id}/resume",
    "POST /v1/execute",
    "POST /v1/workflow-runs",
    "POST /v1/workflow-runs/{run_id}/resume",
    "POST /v1/tools/{name}",
    "POST /v1/sessions",
    "POST /v1/sessions/{id}/fork",
    "POST /e2b/sandboxes",
    "POST /e2b/v2/sandboxes",
    "POST /e2b/sandboxes/{id}/fork",
    "POST /v1/sessions/{id}/contexts/{cid}/restart",
    "POST /e2b/contexts/{cid}/restart",
    "GET /e2b/contexts",
}
# Words of routes that run nothing: files, records, and what concerns a sandbox as a whole.
NOTHING: Final = re.compile(
    r"(?:GET|HEAD|DELETE|PUT|PATCH) .*"
    r"|(?:ANY|WS) .*/(?:ports|tunnels)/.*|ANY /e2b/\{rest:path\}"
    r"|POST .*/(?:fs|files|filesystem\.Filesystem|workspaces|images|agents|workflows)\b.*"
    r"|POST /v1/(?:keys|login|tickets|secrets)|POST .*/cancel|POST .*/previews"
    r"|POST .*/execs/\{eid\}/(?:stdin|close-stdin|signal)|POST .*/contexts/\{cid\}/interrupt"
    r"|POST .*/(?:pause|resume|reclaim|connect|timeout|refreshes|snapshots)"
    r"|POST /e2b/process\.Process/(?:List|Connect|SendInput|StreamInput|SendSignal|CloseStdin"
    r"|Update)"
)
QUIET_TOOLS: Final = {
    "sandbox_open",
    "sandbox_exec_read",
    "sandbox_exec_wait",
    "sandbox_fs_write",
    "sandbox_fs_read",
    "sandbox_fs_list",
    "sandbox_fs_delete",
    "sandbox_stage_file",
    "sandbox_publish_file",
    "sandbox_close",
}
# `held_interpreters` starts an interpreter that waits; the command that gets it is recorded.
STARTERS: Final = {
    "sandkasten_runtime.engine.commands.exec_follower",
    "sandkasten_runtime.engine.commands.execution",
    "sandkasten_runtime.engine.commands.terminals",
    "sandkasten_runtime.engine.oneshot.held_interpreters",
    "sandkasten_runtime.engine.oneshot.run_to_end",
}


async def test_every_route_and_tool_is_known_to_run_something_or_not():
    async with open_e2b(b"k" * 32, {}) as routes:
        found = {f"{one.method} {one.path}" for one in (*route_table().routes, *routes)}
    known = {name for name in WAYS if " /" in name} | THROUGH_OTHERS
    assert known <= found
    assert [name for name in sorted(found - known) if not NOTHING.fullmatch(name)] == []
    assert set(TOOLS) == {name for name in WAYS if name.startswith("sandbox_")} | QUIET_TOOLS


def test_nothing_else_starts_a_program_in_a_sandbox():
    asks = re.compile(r"(?:call|stream)\(\s*\"exec\.start\"|verb, fields = \"exec\.start\"")
    found = {
        module
        for module, path in tree.modules().items()
        if asks.search(path.read_text()) and path.name != "selftest.py"
    }
    assert found == STARTERS


@pytest.fixture(scope="module")
async def place(daemon, anyio_backend):
    keys = {"Authorization": f"Bearer {daemon.key}", "X-API-KEY": daemon.key}
    async with aiohttp.ClientSession(headers=keys) as http:
        one = Place(daemon, http)
        one.box = (await one.ask("POST", "/v1/sessions", {}))["id"]
        # Their kernels and sessions are started by an earlier call.
        await one.of("code", {"code": "1"})
        await one.tool("sandbox_code", code="1")
        yield one


async def records(place: Place) -> tuple[dict[str, Any], list[Any]]:
    """Return everything that ran, by id, and what the audit log has."""
    audit = (await place.ask("GET", "/v1/audit?kind=exec&limit=1000"))["entries"]
    history: dict[str, Any] = {}
    for box in {one["session_id"] for one in audit}:
        rows = await place.ask("GET", f"/v1/sessions/{box}/execs?limit=1000")
        history |= {row["exec_id"]: row for row in rows}
    return history, audit


@pytest.mark.parametrize("name", WAYS)
async def test_each_way_leaves_one_readable_record_in_the_audit_log_and_the_history(place, name):
    way = WAYS[name]
    before, audited = await records(place)
    await way.act(place)

    async with asyncio.timeout(PATIENCE_S):
        while True:
            history, audit = await records(place)
            new = [row for row in history.values() if row["exec_id"] not in before]
            told = audit[len(audited) :]
            ends = [one for one in told if one["action"].endswith(".end")]
            if new and len(ends if way.kind != "kernel" else told) >= len(new):
                break
            await asyncio.sleep(0.02)
    (row,) = new
    assert (row["kind"], re.fullmatch(way.command, row["command"]) is not None) == (way.kind, True)
    assert row["command_bytes"] == len(row["command"])
    assert {one["target"] for one in told} == {row["exec_id"]}
    (shown,) = [one for one in told if {"command", "code"} & set(one["detail"])]
    detail = shown["detail"]
    assert detail["code" if way.kind == "cell" else "command"] == row["command"]
    assert (detail.get("env"), detail.get("code")) == (
        way.env,
        row["command"] if way.kind == "cell" else way.program,
    )
    assert len(ends) == (way.kind != "kernel")
    assert "hush" not in json.dumps([row, told])


async def test_the_end_of_a_command_names_who_started_it_and_a_signal_who_sent_it(place):
    """The task that notices both ends belongs to the request that started the first command."""
    made = [await place.ask("POST", "/v1/keys", {}) for _ in range(2)]
    command = {"cmd": ["sleep", "1000"], "background": True}
    path, started = f"/v1/sessions/{place.box}", []

    async def rows(eid: str, *actions: str) -> dict[str, tuple[str, str]]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                audit = (await place.ask("GET", f"/v1/audit?target={eid}"))["entries"]
                found = {one["action"]: (one["key_id"], one["request_id"]) for one in audit}
                if set(actions) <= set(found):
                    return found
                await asyncio.sleep(0.02)

    def as_(who: int, request: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {made[who]['key']}", "X-Request-Id": request}

    for who, request in enumerate(("one", "two")):
        found = await place.ask("POST", f"{path}/exec", command, **as_(who, request))
        started.append(found["exec_id"])
        # Then the end is a record of its own.
        await rows(found["exec_id"], "exec.start")
    for who, eid in ((0, started[1]), (1, started[0])):
        signal = {"signal": "KILL"}
        await place.ask("POST", f"{path}/execs/{eid}/signal", signal, **as_(who, f"signal-{who}"))
    for who, request in enumerate(("one", "two")):
        assert await rows(started[who], "exec.end", "exec.signal") == {
            "exec.start": (made[who]["id"], request),
            "exec.signal": (made[1 - who]["id"], f"signal-{1 - who}"),
            "exec.end": (made[who]["id"], request),
        }
    history = await place.of("execs", method="GET")
    keys = {row["exec_id"]: row["key_id"] for row in history}
    assert [keys[eid] for eid in started] == [one["id"] for one in made]
