"""E2B's protocol as bytes: tenants, tokens, hostile requests, and what the SDKs never send."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import logging
import re
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import StoreUnusable
from sandkasten.model.access.api_keys import e2b_spelling
from sandkasten.model.access.preview_links import SandboxPreviews
from sandkasten.model.files.file_entries import Change
from sandkasten.model.ids import host_label, sandbox_id
from sandkasten.model.sandbox.network_policy import default_network
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest, UpdateRequest
from sandkasten_e2b import file_routes, file_watchers, process_routes
from sandkasten_e2b.connect_codec import STREAM, envelope
from sandkasten_e2b.e2b_assembly import open_e2b, read_key
from sandkasten_e2b.e2b_messages import WatchDir
from sandkasten_e2b.envd_tokens import SignedPath
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.storage import sandbox_files
from sandkasten_server.api.previews.preview_access import Previews, unknown_preview
from sandkasten_server.api.previews.preview_app import page
from sandkasten_server.api.previews.preview_rules import PreviewRules
from sandkasten_server.records.preview_directory import PreviewDirectory
from tests.api.daemon_in_process import serving
from tests.api.daemon_with_database import AS_OPERATOR, OPERATOR, booked
from tests.e2b_requests import ABSENT, TOKENS, E2b, another, engine_at
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten.model.sandbox.sandbox_values import Info


@pytest.mark.promise("P79")
async def test_another_tenants_sandbox_is_answered_like_an_unknown_one(e2b):
    mine, other = await e2b.create(), await another(e2b)
    requests: tuple[tuple[str, str, object], ...] = (
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/timeout", {"timeout": 5}),
        ("POST", "/connect", {"timeout": 5}),
        ("POST", "/pause", {}),
        ("POST", "/resume", {}),
        ("GET", "/metrics", None),
        ("PUT", "/network", {}),
    )
    for method, path, body in requests:
        answers = [
            await other.ask(method, f"/sandboxes/{box}{path}", body) for box in (mine, ABSENT)
        ]
        assert [status for status, _ in answers] == [404, 404], path
        told = [json.dumps(one).replace(mine, ABSENT) for _, one in answers]
        assert told[0] == told[1], path
        assert set(answers[0][1]) == {"code", "message"}
    assert await other.ask("GET", "/v2/sandboxes") == (200, [])
    assert [one["sandboxID"] for one in (await e2b.ask("GET", "/v2/sandboxes"))[1]] == [mine]


@pytest.mark.promise("P79")
async def test_a_request_without_the_key_or_the_token_is_refused(e2b):
    box, other = await e2b.create(), await e2b.create()
    for key in ("", "wrong", "x" * 10_000):
        status, told = await e2b.ask("GET", f"/sandboxes/{box}", headers={"X-API-KEY": key})
        assert (status, told["code"]) == (401, 401)
    stat = "/filesystem.Filesystem/Stat"
    for sandbox, token in (
        (box, ""),
        (box, TOKENS.token(other)),
        (ABSENT, TOKENS.token(box)),
        ("../x", TOKENS.token(box)),
        ("", TOKENS.token("")),
    ):
        headers = {"E2b-Sandbox-Id": sandbox, "X-Access-Token": token, "X-API-KEY": OPERATOR}
        told = await e2b.call(box, stat, {"path": "/"}, **headers)
        assert (told[0], told[1]["code"]) == (401, "unauthenticated"), sandbox
    # The bearer of our own API opens nothing here.
    assert (await e2b.ask("GET", "/sandboxes", headers={"X-API-KEY": "", **AS_OPERATOR}))[0] == 401
    assert (await e2b.call(box, stat, {"path": "/"}))[0] == 200


@pytest.mark.promise("P79")
async def test_a_sandbox_that_is_gone_answers_with_the_words_that_the_sdks_know(e2b):
    for body in ({"path": "/"},):
        status, told = await e2b.call(ABSENT, "/filesystem.Filesystem/Stat", body)
        assert (status, told["code"]) == (502, 502)
        assert told["message"].startswith("The sandbox was not found")
    status, raw = await e2b.send(
        ABSENT, "/process.Process/Start", envelope({}), **{"Content-Type": STREAM}
    )
    assert (status, json.loads(raw)["code"]) == (502, 502)


@pytest.mark.promise("P79")
async def test_signatures_are_of_one_path_and_one_operation(e2b):
    box = await e2b.create()
    octets = {"Content-Type": "application/octet-stream"}
    assert (await e2b.send(box, "/files?path=/tmp/a", b"secret", **octets))[0] == 200

    async def fetch(method: str, **query: str) -> int:
        url = f"{e2b.daemon.url}/files"
        async with e2b.daemon.http.request(
            method, url, params=query, data=b"x" if method == "POST" else None, headers=octets
        ) as found:
            return found.status

    def sign(path: str, operation: Any, **more: str) -> dict[str, str]:
        one = SignedPath(path, operation, "", "", more.get("signature_expiration"))
        return {"path": path, "signature": one._signature(TOKENS.token(box)), **more}

    assert await fetch("GET", **sign("/tmp/a", "read")) == 200
    assert await fetch("POST", **sign("/tmp/a", "write")) == 200
    assert await fetch("POST", **sign("/tmp/a", "read")) == 401
    assert await fetch("GET", **sign("/tmp/a", "write")) == 401
    assert await fetch("GET", **{**sign("/tmp/a", "read"), "path": "/etc/passwd"}) == 401
    assert await fetch("GET", **{**sign("/tmp/a", "read"), "username": "root"}) == 401
    assert await fetch("GET", **sign("/tmp/a", "read", signature_expiration="1")) == 401
    later = sign("/tmp/a", "read", signature_expiration="99999999999")
    assert await fetch("GET", **later) == 200
    assert await fetch("GET", **{**later, "signature_expiration": "99999999998"}) == 401
    assert await fetch("GET", path="/tmp/a") == 401
    assert (await e2b.ask("DELETE", f"/sandboxes/{box}"))[0] == 204
    assert await fetch("GET", **sign("/tmp/a", "read")) == 401


async def test_hostile_requests_are_refused_before_they_are_parsed(e2b):
    box = await e2b.create()
    stat, start = "/filesystem.Filesystem/Stat", "/process.Process/Start"
    for path in ("a\0b", "../x", "x" * 9000, "/tmp/" + "d/" * 4000):
        told = await e2b.call(box, stat, {"path": path})
        assert (told[0], told[1]["code"]) == (400, "invalid_argument")
    assert (await e2b.call(box, stat, {"path": 5}))[0] == 400
    deep = await e2b.send(box, stat, b"[" * 100_000, **{"Content-Type": "application/json"})
    assert (deep[0], json.loads(deep[1])["code"]) == (429, "resource_exhausted")
    for raw in (b"[]", b"{", b"\xff"):
        found = await e2b.send(box, stat, raw, **{"Content-Type": "application/json"})
        assert (found[0], json.loads(found[1])["code"]) == (400, "invalid_argument")
    for raw in (b"", b"\0\xff\xff\xff\xff", b"\x01\0\0\0\x02{}", b"\0\0\0\0\x02{}" * 2):
        status, told = await e2b.send(box, start, raw, **{"Content-Type": STREAM})
        assert (status, "error" in json.loads(told[5:])) == (200, True)
    # A form, which any page of a browser may send.
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        assert (await e2b.send(box, stat, b"{}", **{"Content-Type": kind}))[0] == 400
    for header in ("Connect-Timeout-Ms", "Keepalive-Ping-Interval"):
        told = await e2b.stream(box, start, {"process": {"cmd": "true"}}, **{header: "-1"})
        assert told[-1]["error"]["code"] == "invalid_argument"
    bomb = gzip.compress(b"0" * (64 << 20))
    more = {"Content-Encoding": "gzip", "Content-Type": "application/octet-stream"}
    status, raw = await e2b.send(box, "/files?path=/tmp/b", bomb, **more)
    assert status in (200, 413, 507)
    for raw in (b"not gzip", zlib.compress(b"x"), gzip.compress(b"x" * 1000)[:-9]):
        assert (await e2b.send(box, "/files?path=/tmp/c", raw, **more))[0] == 400
    assert (await e2b.call(box, stat, {"path": "/tmp/c"}))[0] == 404


async def test_all_members_of_a_gzip_body_are_written(e2b, monkeypatch):
    box = await e2b.create()
    more = {"Content-Encoding": "gzip", "Content-Type": "application/octet-stream"}
    several = b"".join(gzip.compress(one) for one in (b"one ", b"", b"two ", b"x" * 600_000))
    path = "/files?path=/tmp/several"
    assert (await e2b.send(box, path, several, **more))[0] == 200
    found = await e2b.daemon.server.engine.files.read(box, "/tmp/several")
    assert found.data == b"one two " + b"x" * 600_000
    for rest in (b"not gzip", gzip.compress(b"cut")[:-4]):
        assert (await e2b.send(box, path, several + rest, **more))[0] == 400
    monkeypatch.setattr(file_routes, "_MAX_MEMBERS", 3)
    status, told = await e2b.send(box, path, several, **more)
    assert (status, "more than 3 members" in json.loads(told)["message"]) == (400, True)


@pytest.mark.parametrize("count", [2, 4], ids=["read", "waiting"])
async def test_streamed_input_ends_when_its_client_leaves(e2b, caplog, count):
    """All of it was read by the daemon, or a part still waits in the connection."""
    caplog.set_level(logging.INFO, "sandkasten.api")
    box = await e2b.create()
    body = {"process": {"cmd": "sleep", "args": ["1000"]}, "stdin": True}
    route = "/e2b/process.Process/StreamInput"
    headers = {"E2b-Sandbox-Id": box, "X-Access-Token": TOKENS.token(box), "Content-Type": STREAM}
    start = f"{e2b.daemon.url}/e2b/process.Process/Start"
    async with e2b.daemon.http.post(start, data=envelope(body), headers=headers) as process:
        head = await process.content.readexactly(5)
        began = json.loads(await process.content.readexactly(int.from_bytes(head[1:])))
        pid = began["event"]["start"]["pid"]
        # More than a pipe holds, and the program reads nothing.
        piece = {"data": {"input": {"stdin": base64.b64encode(b"x" * 100_000).decode()}}}
        sent = envelope({"start": {"process": {"pid": pid}}}) + envelope(piece) * count
        lines = [f"POST {route} HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        _, writer = await asyncio.open_connection("127.0.0.1", e2b.daemon.port)
        writer.write(("\r\n".join(lines) + f"\r\n\r\n{len(sent):x}\r\n").encode() + sent)
        await writer.drain()
        while writer.transport.get_write_buffer_size():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        writer.close()
        async with asyncio.timeout(PATIENCE_S):
            while not [one for one in caplog.records if told_route(one) == route]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        _, listed = await e2b.call(box, "/process.Process/List", {})
        assert [one["pid"] for one in listed["processes"]] == [pid]
        await e2b.call(box, "/process.Process/SendSignal",
                       {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"})  # fmt: skip


def told_route(record):
    fields = getattr(record, "sandkasten", None) or {}
    return fields.get("route")


async def test_processes_are_of_their_sandbox(e2b):
    one, two = await e2b.create(), await e2b.create()
    process = {"cmd": "/bin/sh", "args": ["-c", "read x; echo $x; exit 7"]}
    body = {"process": process, "tag": "mine", "stdin": True}
    headers = {
        "E2b-Sandbox-Id": one, "X-Access-Token": TOKENS.token(one), "Content-Type": STREAM,
    }  # fmt: skip
    url = f"{e2b.daemon.url}/e2b/process.Process/Start"
    async with e2b.daemon.http.post(url, data=envelope(body), headers=headers) as found:
        head = await found.content.readexactly(5)
        began = json.loads(await found.content.readexactly(int.from_bytes(head[1:])))
        pid = began["event"]["start"]["pid"]
        _, listed = await e2b.call(one, "/process.Process/List", {})
        assert [(p["pid"], p["tag"]) for p in listed["processes"]] == [(pid, "mine")]
        assert await e2b.call(two, "/process.Process/List", {}) == (200, {"processes": []})
        sent = {"input": {"stdin": base64.b64encode(b"hi\n").decode()}}
        for selector in ({"pid": pid}, {"tag": "mine"}):
            told = await e2b.call(two, "/process.Process/SendInput", {"process": selector, **sent})
            assert (told[0], told[1]["code"]) == (404, "not_found")
        selected = {"process": {"tag": "mine"}}
        wrong = {**selected, "input": {"stdin": "***"}}
        assert (await e2b.call(one, "/process.Process/SendInput", wrong))[0] == 400
        odd = {**selected, "signal": "SIGNAL_SIGSTOP"}
        assert (await e2b.call(one, "/process.Process/SendSignal", odd))[0] == 400
        messages = [{"start": selected}, {"data": sent}]
        data = b"".join(envelope(message) for message in messages)
        status, raw = await e2b.send(
            one, "/process.Process/StreamInput", data, **{"Content-Type": STREAM}
        )
        assert (status, raw) == (200, envelope({}) + envelope({}, flags=2))
        rest = await found.content.read()
    ended = {"exitCode": 7, "exited": True, "status": "exit status 7", "error": "exit status 7"}
    assert json.dumps(ended, separators=(",", ":")).encode() in rest


async def test_watchers_are_of_their_sandbox_and_bounded(e2b):
    one, two = await e2b.create(), await e2b.create()
    service = "/filesystem.Filesystem"
    made = [(await e2b.call(one, f"{service}/CreateWatcher", {"path": "/tmp"})) for _ in range(32)]
    assert {status for status, _ in made} == {200}
    refused = await e2b.call(one, f"{service}/CreateWatcher", {"path": "/tmp"})
    assert (refused[0], refused[1]["code"]) == (429, "resource_exhausted")
    body = {"watcherId": made[0][1]["watcherId"]}
    assert (await e2b.call(two, f"{service}/GetWatcherEvents", body))[0] == 404
    assert (await e2b.call(two, f"{service}/RemoveWatcher", body))[0] == 404
    octets = {"Content-Type": "application/octet-stream"}
    await e2b.send(one, "/files?path=/tmp/new", b"1", **octets)
    _, told = await e2b.call(one, f"{service}/GetWatcherEvents", body)
    kinds = [(event["name"], event["type"]) for event in told["events"]]
    assert kinds == [("new", f"EVENT_TYPE_{kind}") for kind in ("CREATE", "WRITE", "CHMOD")]
    assert (await e2b.call(one, f"{service}/RemoveWatcher", body)) == (200, {})
    assert (await e2b.call(one, f"{service}/GetWatcherEvents", body))[0] == 404
    missing = await e2b.call(one, f"{service}/CreateWatcher", {"path": "/tmp/nothing"})
    assert (missing[0], missing[1]["code"]) == (404, "not_found")


LONG_PATHS = """
import os
os.mkdir("long")
os.chdir("long")
for _ in range(13):
    os.mkdir("d" * 250)
    os.chdir("d" * 250)
for n in range(900):
    os.symlink("t" * 4000, str(n))
"""


async def test_a_list_of_long_paths_is_bounded(e2b):
    box = await e2b.create()
    process = {"cmd": "python3", "args": ["-c", LONG_PATHS]}
    ended = await e2b.stream(box, "/process.Process/Start", {"process": process})
    assert ended[-2]["event"]["end"]["exitCode"] == 0
    path, listed = "/workspace/long", "/filesystem.Filesystem/ListDir"
    refused = await e2b.call(box, listed, {"path": path + ("/" + "d" * 250) * 13})
    assert (refused[0], refused[1]["code"]) == (429, "resource_exhausted")
    assert (await e2b.call(box, listed, {"path": path}))[0] == 200


def test_a_watcher_keeps_the_newest_events_up_to_a_size():
    watcher = file_watchers._Watcher("sbx", "/tmp")
    for number in range(1000):
        file_watchers._keep(watcher, {"name": number, "entry": "x" * 12_000})
    assert 10 < len(watcher.events) < 200
    assert json.loads(watcher.events[-1])["name"] == 999
    assert watcher.event_bytes == sum(map(len, watcher.events))


async def test_events_are_not_kept_for_longer_than_their_sandbox(tmp_path, monkeypatch):
    kept: list[Any] = []
    keep = file_watchers._keep

    def noted(one: Any, event: Any) -> None:
        kept.append(one)
        keep(one, event)

    monkeypatch.setattr(file_watchers, "_keep", noted)
    async with engine_at(tmp_path) as engine:
        box = (await engine.create(CreateRequest(SandboxOptions()))).id
        watchers = file_watchers.FileWatchers()
        watcher = await watchers.create(engine, engine.files, box, WatchDir(path="/tmp"))
        await engine.files.write(box, "/tmp/new", b"1")
        assert len(await watchers.drain(engine, box, watcher)) == 3
        await engine.files.write(box, "/tmp/newer", b"1")
        # The runner answers in order.
        await engine.files.stat(box, "/tmp/newer")
        await engine.destroy(box)
        await asyncio.gather(kept[0].task)
        assert not kept[0].events
        await watchers.aclose()


async def turns_during(source: AsyncIterator[Any]) -> tuple[int, int]:
    """Return how many values a source has, and how many turns another task gets meanwhile."""
    turns, values = 0, 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    async for _ in source:
        values += 1
    counting.cancel()
    return values, turns


async def test_streamed_input_leaves_turns_to_others():
    async def body() -> AsyncIterator[bytes]:
        yield envelope({}) * 100_000

    slices, turns = await turns_during(process_routes._slices(body()))
    assert (slices > 100, turns >= slices - 1) == (True, True)


async def test_many_changes_leave_turns_to_others():
    async def changes() -> AsyncIterator[Change]:
        for number in range(1000):
            yield Change("deleted", f"/tmp/{number}")

    engine: Any = None
    found = file_watchers._events(engine, sandbox_id(ABSENT), WatchDir(), "/tmp", changes())
    events, turns = await turns_during(found)
    assert events == 1000
    assert turns > 50


async def test_tags_of_one_sandbox_do_not_displace_those_of_another(e2b, monkeypatch):
    monkeypatch.setattr(process_routes, "_MAX_TAGS", 2)
    one, two = await e2b.create(), await e2b.create()
    process = {"cmd": "sleep", "args": ["60"]}
    start, listed = "/process.Process/Start", "/process.Process/List"
    began = asyncio.create_task(e2b.stream(one, start, {"process": process, "tag": "kept"}))
    async with asyncio.timeout(PATIENCE_S):
        while not (await e2b.call(one, listed, {}))[1]["processes"]:
            pass
    for tag in ("a", "b", "c"):
        await e2b.stream(two, start, {"process": {"cmd": "true"}, "tag": tag})
    assert [p["tag"] for p in (await e2b.call(one, listed, {}))[1]["processes"]] == ["kept"]
    kill = {"process": {"tag": "kept"}, "signal": "SIGNAL_SIGKILL"}
    assert (await e2b.call(one, "/process.Process/SendSignal", kill))[0] == 200
    await began


async def test_a_process_starts_only_if_its_stream_can_be_sent(e2b):
    box = await e2b.create()
    process = {"process": {"cmd": "sleep", "args": ["60"]}}
    told = await e2b.stream(
        box, "/process.Process/Start", process, **{"Keepalive-Ping-Interval": "-1"}
    )
    assert told[-1]["error"]["code"] == "invalid_argument"
    assert await e2b.call(box, "/process.Process/List", {}) == (200, {"processes": []})


async def test_commands_run_under_a_ceiling_of_kept_output(e2b, monkeypatch):
    box = await e2b.create()
    execution = e2b.daemon.server.engine._execution
    monkeypatch.setattr(execution, "_ceiling", {"max_stdout_bytes": 1000})
    told = await e2b.stream(box, "/process.Process/Start", {"process": {"cmd": "true"}})
    assert told[-2]["event"]["end"]["exitCode"] == 0


async def test_a_refused_pause_changes_nothing(e2b):
    box = await e2b.create(timeout=100)
    before = (await e2b.ask("GET", f"/sandboxes/{box}"))[1]["endAt"]
    # This backend cannot pause.
    assert (await e2b.ask("POST", f"/sandboxes/{box}/pause"))[0] == 422
    assert (await e2b.ask("GET", f"/sandboxes/{box}"))[1]["endAt"] == before


async def test_forms_have_one_file_or_several_with_their_paths(e2b):
    box = await e2b.create()
    status, raw = await e2b.upload(
        box, "/files", ("file", "/tmp/a"), ("other", None), ("file", "/home/user/b")
    )
    assert (status, [one["path"] for one in json.loads(raw)]) == (200, ["/tmp/a", "/home/user/b"])
    assert (await e2b.upload(box, "/files", ("other", None)))[0] == 400
    assert (await e2b.upload(box, "/files", ("file", "/etc/x")))[0] == 403
    twice = ("file", "a"), ("file", "b")
    assert (await e2b.upload(box, "/files?path=/tmp/c", *twice))[0] == 400


async def test_what_has_no_counterpart_is_refused_by_name(e2b):
    for name, value in (
        ("autoResume", {"enabled": True}),
        ("volumeMounts", [{"name": "v", "path": "/v"}]),
        ("network", {"egressProxy": {"host": "h"}}),
    ):
        status, told = await e2b.ask("POST", "/v2/sandboxes", {"templateID": "base", name: value})
        assert (status, told["code"]) == (400, 400)
        assert name in told["message"]
    status, told = await e2b.ask("POST", "/v2/sandboxes", {"templateID": "No such"})
    assert (status, "sandkasten image ls" in told["message"]) == (404, True)
    assert (await e2b.ask("POST", "/sandboxes", {"templateID": "host"}))[0] == 201
    for path in ("/v3/templates", "/volumes"):
        status, told = await e2b.ask("POST", path, {})
        assert (status, told["code"]) == (400, 400)
        assert path.rpartition("/")[2] in told["message"]
    status, told = await e2b.ask("POST", "/nothing", {})
    assert (status, told["code"]) == (404, 404)


async def test_changes_are_audited_as_those_of_our_own_routes(e2b):
    box = await e2b.create()
    await e2b.ask("POST", f"/sandboxes/{box}/timeout", {"timeout": 60})
    await e2b.ask("DELETE", f"/sandboxes/{box}")
    found = (await e2b.daemon.ask("GET", "/v1/audit?kind=change", headers=AS_OPERATOR)).json
    rows = [(one["action"], one["target"], one["outcome"]) for one in found["entries"]]
    assert rows == [
        (action, box, "ok") for action in ("session.create", "session.update", "session.destroy")
    ]


async def test_an_idempotency_key_finds_the_sandbox_that_it_made(e2b):
    made = [
        await e2b.ask(
            "POST", "/v2/sandboxes", {"templateID": "base"}, headers={"Idempotency-Key": "once"}
        )
        for _ in range(2)
    ]
    assert made[0][1]["sandboxID"] == made[1][1]["sandboxID"]


async def test_connecting_never_shortens_the_time_that_is_left(e2b):
    box = await e2b.create(timeout=500)

    async def ends() -> str:
        return str((await e2b.ask("GET", f"/sandboxes/{box}"))[1]["endAt"])

    before = await ends()
    assert (await e2b.ask("POST", f"/v2/sandboxes/{box}/connect", {"timeout": 5}))[0] == 200
    assert await ends() == before
    assert (await e2b.ask("POST", f"/sandboxes/{box}/timeout", {"timeout": 5}))[0] == 204
    assert await ends() < before


async def test_a_timeout_beyond_the_operators_maximum_is_shortened_and_said(e2b):
    most = e2b.daemon.server.engine.policy.lifetime_s
    asked: dict[str, object] = {"timeout": 10**7}

    async def answered(path: str, body: dict[str, object]) -> tuple[int, str | None]:
        url, headers = f"{e2b.daemon.url}/e2b{path}", {"X-API-KEY": e2b.key}
        async with e2b.daemon.http.post(url, json=body, headers=headers) as found:
            return found.status, found.headers.get("X-Sandkasten-Notice")

    status, notice = await answered("/sandboxes", {"templateID": "base", **asked})
    assert (status, notice) == (
        201, f"timeout is {most:.0f} s; session_max_lifetime_seconds permits no more",
    )  # fmt: skip
    [box] = (await e2b.ask("GET", "/sandboxes"))[1]
    info = await e2b.daemon.server.engine.get(sandbox_id(box["sandboxID"]))
    assert (info.lifetime_s, info.idle_timeout_s) == (most, most)
    for path, expected in (("timeout", 204), ("connect", 200)):
        status, notice = await answered(f"/sandboxes/{info.id}/{path}", asked)
        assert (status, "session_max_lifetime_seconds" in (notice or "")) == (expected, True)
        assert await answered(f"/sandboxes/{info.id}/{path}", {"timeout": 5}) == (expected, None)


async def test_an_alias_of_a_template_exists_if_create_accepts_it(e2b):
    for name in ("base", "code-interpreter-v1"):
        found = await e2b.ask("GET", f"/templates/aliases/{name}")
        assert found == (200, {"templateID": name, "public": True})
    for name in ("none", "team/none:v1", "Not%20A%20Name"):
        status, told = await e2b.ask("GET", f"/templates/aliases/{name}")
        assert (status, set(told)) == (404, {"code", "message"}), name
    # Building one is another matter, and a 404 would mean that a sandbox does not exist.
    assert (await e2b.ask("POST", "/v3/templates", {}))[0] == 400


async def test_a_key_has_a_spelling_that_clients_of_e2b_accept(e2b):
    other = await another(e2b)
    spelled = e2b_spelling(other.key)
    assert re.fullmatch("e2b_[0-9a-f]+", spelled)
    assert await E2b(e2b.daemon, spelled).ask("GET", "/v2/sandboxes") == (200, [])
    for wrong in (spelled[:-2], spelled + "g", "e2b_", "e2b_ff", e2b_spelling(spelled)):
        assert (await E2b(e2b.daemon, wrong).ask("GET", "/v2/sandboxes"))[0] == 401, wrong
    # Only clients of E2B need it.
    url, headers = f"{e2b.daemon.url}/v1/sessions", {"Authorization": f"Bearer {spelled}"}
    async with e2b.daemon.http.get(url, headers=headers) as found:
        assert found.status == 401


@pytest.mark.parametrize("default", [True, False])
async def test_a_network_without_rules_is_that_of_a_new_sandbox(e2b, monkeypatch, default):
    box, engine = await e2b.create(), e2b.daemon.server.engine
    seen: list[object] = []

    async def update(the_id: str, request: UpdateRequest, quota: object) -> None:
        seen.append(request.network)

    monkeypatch.setattr(engine, "update", update)
    monkeypatch.setattr(engine, "policy", replace(engine.policy, network_default=default))
    assert (await e2b.ask("PUT", f"/sandboxes/{box}/network", {}))[0] == 204
    assert (await e2b.ask("PUT", f"/sandboxes/{box}/network", {"denyOut": ["0.0.0.0/0"]}))[0] == 204
    opened = default_network(engine.policy.network, operator=True).public()
    assert seen == [opened if default else "none", "none"]


async def test_the_internet_is_open_as_far_as_the_operator_permits(e2b, monkeypatch):
    """The SDK for JavaScript asks for it in every request, whatever its program says."""
    engine, other = e2b.daemon.server.engine, await another(e2b)
    create, seen = engine.create, []

    async def created(request: CreateRequest, quota: object) -> Info:
        seen.append(request.options.network)
        return await create(replace(request, options=replace(request.options, network=None)), quota)

    monkeypatch.setattr(engine, "create", created)
    part, notices = "the internet is open only as far as policy.network permits", []
    for client, allow in ((e2b, None), (other, ("*",)), (other, None), (other, ("a.example:443",))):
        network = replace(engine.policy.network, allow=allow)
        monkeypatch.setattr(engine, "policy", replace(engine.policy, network=network))
        body = {"templateID": "base", "allow_internet_access": True}
        url, headers = f"{e2b.daemon.url}/e2b/sandboxes", {"X-API-KEY": client.key}
        async with e2b.daemon.http.post(url, json=body, headers=headers) as found:
            assert found.status == 201
            notices.append(found.headers.get("X-Sandkasten-Notice"))
    assert seen == ["full", "full", "none", {"allow": ["a.example:443"]}]
    assert notices == [None, None, part, part]
    # A rule that is named is permitted or refused.
    monkeypatch.setattr(engine, "create", create)
    named = {"templateID": "base", "network": {"allowOut": ["b.example"]}}
    assert (await other.ask("POST", "/sandboxes", named))[0] == 403


async def test_ids_fit_into_host_names_of_a_domain_by_any_address(tmp_path):
    async with (
        engine_at(tmp_path) as engine,
        open_e2b(b"k" * 32, {}, "sandbox.example.com") as routes,
        serving(engine, more=routes) as daemon,
    ):
        e2b = E2b(daemon)
        status, made = await e2b.ask("POST", "/sandboxes", {"templateID": "base"})
        assert (status, made["domain"]) == (201, "sandbox.example.com")
        assert re.fullmatch("sbx-[0-9a-f]{16}", made["sandboxID"])
        [listed] = (await e2b.ask("GET", "/sandboxes"))[1]
        assert listed["sandboxID"] == made["sandboxID"]
        assert (await e2b.ask("GET", f"/sandboxes/{made['sandboxID']}"))[0] == 200


async def test_an_address_without_a_sandbox_has_the_status_of_e2b_below_its_domain(tmp_path):
    domain = "sandbox.example.com"
    ports = await PreviewDirectory.open(tmp_path / "previews")
    previews = Previews(PreviewRules(domain), ports, SystemClock())
    assert previews.gone_answer(f"8000-{ABSENT}.{domain}") is None
    async with (
        engine_at(tmp_path) as engine,
        open_e2b(b"k" * 32, {}, domain, engine=engine, previews=previews),
    ):
        assert previews.gone_answer(f"8000-{ABSENT}.localhost") is None
        label = host_label(ABSENT)
        gone = previews.gone_answer(f"8000-{label}.{domain}")
        told = page(unknown_preview(), html=False, gone_response=gone)
        body = {"sandboxId": label, "message": "The sandbox was not found", "code": 502}
        assert (told.status_code, json.loads(bytes(told.body))) == (502, body)
        assert told.headers["cache-control"] == "no-store"
        shown = page(unknown_preview(), html=True, gone_response=gone)
        assert (shown.status_code, shown.media_type) == (502, "text/html")


async def test_without_keys_on_loopback_any_key_is_accepted(tmp_path):
    async with (
        engine_at(tmp_path) as engine,
        open_e2b(b"k" * 32, {}) as routes,
        serving(engine, more=routes) as daemon,
    ):
        e2b = E2b(daemon, "e2b_anything")
        box = await e2b.create()
        assert [one["sandboxID"] for one in (await e2b.ask("GET", "/sandboxes"))[1]] == [box]

        async def streams() -> list[Any]:
            body = {"process": {"cmd": "/bin/echo", "args": ["hi"]}, "stdin": False}
            return await e2b.stream(box, "/process.Process/Start", body)

        first, *rest = await streams()
        assert first["event"]["start"]["pid"] > 0
        data = base64.b64encode(b"hi\n").decode()
        assert rest == [
            {"event": {"data": {"stdout": data}}},
            {"event": {"end": {"exitCode": 0, "exited": True, "status": "exit status 0"}}},
            {},
        ]


def test_the_key_of_the_tokens_is_made_once(tmp_path):
    key = read_key(tmp_path)
    assert (len(key), read_key(tmp_path)) == (64, key)
    assert (tmp_path / "e2b.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "e2b.key").write_bytes(b"short")
    with pytest.raises(StoreUnusable):
        read_key(tmp_path)


@pytest.mark.promise("P90")
async def test_metadata_that_cannot_be_kept_are_refused_before_the_file_is_written(e2b):
    box = await e2b.create()
    form = {"Content-Type": "application/octet-stream"}
    for name, value in (("a", "\xfc"), ("a", "x" * 3072), ("n" * 247, "1"), ("", "1")):
        status, raw = await e2b.send(
            box, "/files?path=/home/user/new", b"1", **form, **{f"X-Metadata-{name}": value}
        )
        assert (status, "metadata" in json.loads(raw)["message"]) == (400, True), name
    stat = "/filesystem.Filesystem/Stat"
    assert (await e2b.call(box, stat, {"path": "/home/user/new"}))[0] == 404
    many = {f"X-Metadata-N{number}": "v" for number in range(40)}
    status, raw = await e2b.send(box, "/files?path=/home/user/new", b"1", **form, **many)
    kept = {f"n{number}": "v" for number in range(40)}
    assert (status, json.loads(raw)[0]["metadata"]) == (200, kept)
    _, told = await e2b.call(box, stat, {"path": "/home/user/new"})
    assert told["entry"]["metadata"] == kept


@pytest.mark.promise("P90")
async def test_an_older_runner_keeps_files_without_metadata(e2b, monkeypatch):
    box = await e2b.create()
    monkeypatch.setattr(sandbox_files, "HAS_ATTRIBUTES", 99)
    form = {"Content-Type": "application/octet-stream"}
    status, raw = await e2b.send(
        box, "/files?path=/home/user/a", b"1", **form, **{"X-Metadata-A": "1"}
    )
    assert (status, "too old" in json.loads(raw)["message"]) == (422, True)
    assert (await e2b.send(box, "/files?path=/home/user/a", b"1", **form))[0] == 200
    _, told = await e2b.call(box, "/filesystem.Filesystem/ListDir", {"path": "/home/user"})
    assert [(one["name"], one.get("metadata")) for one in told["entries"]] == [("a", None)]


@pytest.mark.promise("P90")
async def test_ports_are_public_only_if_the_operator_permits_it(tmp_path):
    ports = await PreviewDirectory.open(tmp_path / "previews")
    previews = Previews(PreviewRules(), ports, SystemClock())
    async with (
        engine_at(tmp_path) as engine,
        open_e2b(b"k" * 32, {}, public_ports=True) as routes,
        booked(engine, tmp_path / "data", more=routes, previews=previews) as daemon,
    ):
        e2b = E2b(daemon)
        boxes = [
            await e2b.create(),
            await e2b.create(network={"allowPublicTraffic": False}),
            await e2b.create(network={"maskRequestHost": "localhost:${PORT}"}),
        ]
        assert [ports.rules_of(one) for one in boxes] == [
            SandboxPreviews(True),
            SandboxPreviews(False),
            SandboxPreviews(True, "localhost:${PORT}"),
        ]
        previews.rules = PreviewRules(allow_public=False)
        quiet = await e2b.create()
        assert ports.rules_of(quiet) == SandboxPreviews()
        for network in ({"allowPublicTraffic": True}, {"maskRequestHost": "a\r\nX: 1"}):
            body = {"templateID": "base", "network": network}
            status, told = await e2b.ask("POST", "/sandboxes", body)
            assert status in (400, 403), told
        # What could not be prepared was destroyed.
        _, listed = await e2b.ask("GET", "/v2/sandboxes")
        assert {one["sandboxID"] for one in listed} == {*boxes, quiet}
