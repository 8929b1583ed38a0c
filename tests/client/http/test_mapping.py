"""Encoding requests as JSON and decoding answers, without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkasten import errors
from sandkasten.client.http import files, image_json, session_json
from sandkasten.client.http.connection import address_of
from sandkasten.client.http.error_responses import BY_CODE, error_of
from sandkasten.client.http.event_parser import Event, Parser
from sandkasten.errors import InvalidRequest, ProtocolViolation
from sandkasten.model.commands.exec_values import Chunk, ExecRequest, Pty
from sandkasten.model.files.file_entries import FileEntry
from sandkasten.model.sandbox.limits import MIB
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest

CODES = json.loads((Path(__file__).parents[3] / "spec" / "errors.json").read_text())
SESSION = {
    "id": "sbx_0123456789abcdef",
    "image": "host",
    "backend": "local",
    "status": "running",
    "created_at": "2026-11-15T10:00:00.250+00:00",
    "expires_at": 1763200000.5,
}
EXEC = {"exec_id": "exe_1", "status": "completed", "exit_code": 0}


# ---- asked


def test_omitted_fields_are_not_sent():
    assert session_json.create_body(CreateRequest()) == {}
    assert session_json.exec_body(ExecRequest("ls"), "k") == {"cmd": "ls", "idempotency_key": "k"}
    assert session_json.run_body(RunRequest("1")) == {"runtime": "python", "code": "1"}


def test_given_fields_are_sent_under_their_public_names():
    request = CreateRequest(
        SandboxOptions(
            image="python",
            ttl_seconds=5,
            idle_timeout_seconds=6,
            lifetime_seconds=7,
            env={"A": "1"},
            labels={"b": "2"},
            limits={"pids_limit": 9},
            workspace_id="w",
            workspace_mode="shared",
            mounts=("m",),
        ),
        session_key="k",
    )
    assert session_json.create_body(request) == {
        "image": "python",
        "ttl_seconds": 5,
        "idle_timeout_seconds": 6,
        "lifetime_seconds": 7,
        "env": {"A": "1"},
        "labels": {"b": "2"},
        "limits": {"pids_limit": 9},
        "workspace_id": "w",
        "workspace_mode": "shared",
        "mounts": ["m"],
        "session_key": "k",
    }
    body = session_json.exec_body(
        ExecRequest(
            ("ls", ""),
            stateful=False,
            cwd="/",
            stdin=b"\xff",
            timeout_seconds=0.5,
            shell="two",
            pty=Pty(3, 4),
            max_output_bytes=0,
            keep_stdin_open=True,
            raw_output=True,
        ),
        "k",
    )
    assert body == {
        "cmd": ["ls", ""],
        "stateful": False,
        "cwd": "/",
        "stdin_b64": "/w==",
        "timeout_seconds": 0.5,
        "shell": "two",
        "pty": {"rows": 3, "cols": 4},
        "max_output_bytes": 0,
        "keep_stdin_open": True,
        "raw_output": True,
        "idempotency_key": "k",
    }


def test_an_empty_command_and_an_empty_stdin_are_sent():
    assert session_json.exec_body(ExecRequest(()), "k")["cmd"] == []
    assert session_json.exec_body(ExecRequest("cat", stdin=b""), "k")["stdin"] == ""


def test_one_shot_files_are_sent_as_text_where_they_are_utf8():
    body = session_json.run_body(RunRequest(b"print()", files={"a": "x", "b": b"y", "c": b"\xff"}))
    assert body["files"] == {"a": "x", "b": "y", "c": {"content_base64": "/w=="}}
    with pytest.raises(InvalidRequest, match="UTF-8"):
        session_json.run_body(RunRequest(b"\xff"))
    wrong: dict[str, Any] = {"a": 1}
    with pytest.raises(InvalidRequest, match="a must be str or bytes, got int"):
        session_json.run_body(RunRequest("1", files=wrong))


# ---- answered


def test_a_session_is_decoded_completely():
    told = {
        **SESSION,
        "limits": {"mem_limit_mb": 256, "max_exec_timeout_seconds": 7200, "new_limit": 1},
        "labels": {"a": "b"},
        "mounts": [{"name": "m", "target": "/m", "mode": "rw"}],
        "unenforced": [{"limit": "cpus", "reason": "r", "remedy": "s"}],
        "workspace_id": "w",
        "workspace_shared": True,
        "unheard_of": {},
    }
    info = session_json.info_of(told)
    assert (info.limits.memory_bytes, info.limits.max_exec_timeout_s) == (256 * MIB, 7200)
    assert (info.created_at, info.expires_at) == (1794736800.25, 1763200000.5)
    assert (info.mounts[0].target, info.mounts[0].mode) == ("/m", "rw")
    assert info.unenforced[0].limit == "cpus"
    assert (info.workspace_shared, info.labels, info.created) == (True, {"a": "b"}, False)


def test_the_exact_timestamp_overrides_the_date():
    assert session_json.info_of({**SESSION, "created_at_unix": 5.125}).created_at == 5.125


def test_output_that_is_not_utf8_is_decoded_as_bytes():
    told = {**EXEC, "stdout": "\ufffd", "stdout_b64": "/w==", "output": "ä"}
    result = session_json.exec_result_of(told)
    assert (result.stdout, result.output, result.stderr) == (b"\xff", "ä".encode(), b"")


def test_an_unknown_exit_code_stays_unknown():
    result = session_json.exec_result_of({**EXEC, "status": "lost", "exit_code": None})
    assert (result.exit_code, result.status) == (None, "lost")


def test_an_unknown_reason_of_a_newer_daemon_is_shown_unchanged():
    why = {"code": "NEW", "message": "m", "hint": "h"}
    found = session_json.exec_result_of({**EXEC, "why": why}).why
    assert found is not None
    assert (found.code, found.message) == ("NEW", "m")


def test_a_chunk_is_text_or_bytes_and_reports_its_gap():
    assert session_json.chunk_of({"seq": 1, "stream": "stdout", "text": "a"}) == Chunk(
        1, "stdout", b"a"
    )
    told = {"seq": 2, "stream": "pty", "data_b64": "/w==", "gap_bytes": 7}
    assert session_json.chunk_of(told) == Chunk(2, "pty", b"\xff", 7)


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (session_json.info_of, []),
        (session_json.info_of, {**SESSION, "id": 5}),
        (session_json.info_of, {**SESSION, "status": "dancing"}),
        (session_json.info_of, {**SESSION, "created_at": "yesterday"}),
        (session_json.info_of, {**SESSION, "labels": {"a": 1}}),
        (session_json.exec_result_of, {**EXEC, "exit_code": "0"}),
        (session_json.exec_result_of, {**EXEC, "exit_code": True}),
        (session_json.exec_result_of, {**EXEC, "stdout_b64": "*"}),
        (session_json.exec_result_of, {"exec_id": "x"}),
        (session_json.execs_of, {"execs": 5}),
        (session_json.chunk_of, {"seq": 1.5, "stream": "stdout", "text": ""}),
        (session_json.chunk_of, {"seq": 1, "stream": "stdin", "text": ""}),
        (session_json.run_result_of, {"ok": "yes"}),
        (session_json.stats_of, None),
        (files.entry_of, {"path": "/a", "name": "a", "type": "dragon"}),
        (files.listing_of, {"entries": [5]}),
        (image_json.image_of, {"id": "x", "names": "x"}),
        (image_json.workspace_of, {}),
    ],
)
def test_a_malformed_answer_is_an_error(read, value):
    with pytest.raises(ProtocolViolation):
        read(value)


# ---- files


def test_a_name_that_is_not_utf8_survives_as_bytes():
    assert files.name_fields("path", "a/ä") == {"path": "a/ä"}
    assert files.name_fields("path", "a\udcff") == {"path_b64": "Yf8="}
    told = {"path": "a\ufffd", "path_b64": "Yf8=", "name": "a", "type": "symlink", "size": 1,
            "mode": 0o777, "mtime_unix": 3, "target": "b"}  # fmt: skip
    wanted = FileEntry("a\udcff", "a", "symlink", 1, 0o777, 3, 0, 0, "b")
    assert files.entry_of(told) == wanted
    with pytest.raises(InvalidRequest):
        files.name_fields("path", "\ud800")
    with pytest.raises(InvalidRequest):
        files.name_fields("path", b"a")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offset", "most", "header"),
    [(0, None, None), (5, None, "bytes=5-"), (0, 10, "bytes=0-9"), (5, 1, "bytes=5-5")],
)
def test_a_part_of_a_file_is_requested_by_byte_range(offset, most, header):
    assert files.range_of(offset, most).get("Range") == header


def test_the_true_size_is_read_from_the_answer():
    assert files.size_of({"Content-Range": "bytes 0-9/1234"}, 10) == 1234
    assert files.size_of({}, 10) == 10


# ---- errors


@pytest.mark.promise("P36")
@pytest.mark.parametrize("code", [row["code"] for row in CODES["errors"]])
def test_every_error_code_is_raised_as_its_class(code):
    assert BY_CODE[code].code == code
    raw = json.dumps({"code": code, "message": "m", "hint": "h", "details": {"field": "x"}})
    found = error_of(500, raw.encode())
    assert type(found) is BY_CODE[code]
    assert (found.message, found.hint, found.details["field"]) == ("m", "h", "x")


def test_a_shared_error_code_is_resolved_to_the_specific_class():
    assert BY_CODE["INVALID_REQUEST"] is errors.InvalidRequest
    assert BY_CODE["INTERNAL_ERROR"] is errors.InternalError
    assert BY_CODE["BACKEND_UNAVAILABLE"] is errors.BackendUnavailable
    assert BY_CODE["FILE_TROUBLE"] is errors.FileTrouble


@pytest.mark.promise("P36")
@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, errors.Unauthorized), (404, errors.NotFound), (410, errors.SessionExpired),
     (418, errors.InvalidRequest), (429, errors.QuotaExceeded), (500, errors.InternalError),
     (503, errors.BackendUnavailable)],
)  # fmt: skip
def test_an_unknown_error_code_is_mapped_by_its_status(status, kind):
    found = error_of(status, b'{"code": "NEWER", "message": "m", "hint": "h"}')
    assert type(found) is kind
    assert (found.message, found.details["code"]) == ("m", "NEWER")


def test_an_error_page_of_another_server_is_not_parsed_as_ours():
    found = error_of(502, b"<html>Bad gateway</html>")
    assert type(found) is errors.BackendUnavailable
    assert "Bad gateway" in found.message
    assert "Sandkasten daemon" in found.hint


def test_an_internal_error_carries_the_request_id_of_the_log():
    raw = b'{"code": "INTERNAL_ERROR", "message": "m", "request_id": "req_1"}'
    assert error_of(500, raw).details["request_id"] == "req_1"


# ---- addresses


@pytest.mark.parametrize(
    ("url", "base", "socket"),
    [
        ("http://localhost:8080", "http://localhost:8080", None),
        ("https://box.example/prefix/", "https://box.example/prefix", None),
        ("http://[::1]:80", "http://[::1]:80", None),
        ("unix:///run/a%20b/daemon.sock", "http://localhost", "/run/a b/daemon.sock"),
    ],
)
def test_a_daemon_address_is_parsed(url, base, socket):
    found = address_of(url)
    assert (found.base, found.socket) == (base, socket)


@pytest.mark.parametrize(
    "url",
    ["localhost:8080", "ftp://x", "http://", "http://x:99999", "http://x/?a=b", "unix://run/x",
     "http://user:secret@x", ""],
)  # fmt: skip
def test_an_invalid_address_is_refused_without_repeating_a_password(url):
    with pytest.raises(InvalidRequest) as caught:
        address_of(url)
    assert "secret" not in str(caught.value)


# ---- events

STREAM = (
    b': a comment\r\nid: 5\r\nevent: chunk\r\ndata: {"a":\r\ndata: 1}\r\n\r\n'
    b"data: plain\n\n\n: still here\n\nevent: done\ndata:x\n\nevent: lost\n"
)


@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=12))
def test_events_are_the_same_for_any_split_of_the_bytes(cuts):
    ends = [0, *sorted(set(cuts)), len(STREAM)]
    parser = Parser()
    found = [
        event
        for start, end in zip(ends, ends[1:], strict=False)
        for event in parser.feed(STREAM[start:end])
    ]
    wanted = [Event("chunk", '{"a":\n1}'), Event("message", "plain"), Event("done", "x")]
    assert found == wanted


def test_an_endless_event_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr("sandkasten.client.http.event_parser.MAX_EVENT_BYTES", 1000)
    parser = Parser()
    with pytest.raises(ProtocolViolation):
        parser.feed(b"data: x\n" + b"data: " + b"x" * 1000)
    parser = Parser()
    for _ in range(10):
        parser.feed(b"data: " + b"x" * 90 + b"\n")
    with pytest.raises(ProtocolViolation):
        parser.feed(b"data: " + b"x" * 200)
    parser = Parser()
    for _ in range(100):
        parser.feed(b"data:\n")
    with pytest.raises(ProtocolViolation):
        parser.feed(b"data: " + b"x" * 200)
