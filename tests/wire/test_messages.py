"""Answers of a hostile runner: decoded into closed values or refused, field by field."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkasten.errors import ProtocolViolation, SandkastenError
from sandkasten_runtime.wire.messages import (
    FileStat,
    decode_entry,
    decode_exec,
    decode_execs,
    decode_hello,
    decode_page,
    decode_processes,
    decode_shells,
    decode_stats,
)
from sandkasten_runtime.wire.runner_errors import MAX_MESSAGE_CHARS, MEANINGS, error_for

if TYPE_CHECKING:
    from collections.abc import Callable

SPEC = Path(__file__).resolve().parents[2] / "spec" / "runner" / "generation-4.md"

EXEC = {
    "exec_id": "e1",
    "kind": "shell",
    "shell": "default",
    "state": "exited",
    "exit_code": 0,
    "signal": None,
    "timed_out": False,
    "killed": False,
    "shell_reset": False,
    "cwd": "/workspace",
    "pid": 7,
    "started_ms": 1,
    "duration_ms": 2,
    "cpu_ms": 3,
    "peak_rss_bytes": 4,
    "io_read_bytes": 5,
    "io_write_bytes": 6,
    "stdout_bytes": 7,
    "stderr_bytes": 8,
    "truncated": True,
    "last_seq": 9,
    "oom_suspect": False,
    "sigsys": False,
}
ENTRY = {
    "path": "/workspace/a",
    "name": {"b64": "/w=="},
    "type": "file",
    "size": 3,
    "mode": 0o644,
    "mtime_unix": -5,
    "uid": 1000,
    "gid": 1000,
}
PROCESS = {
    "pid": 2,
    "ppid": 1,
    "uid": 1000,
    "state": "S",
    "name": "sleep",
    "cmdline": ["sleep", {"b64": "/w=="}],
    "rss_bytes": 1,
    "cpu_ms": 1,
    "started_ms": 1,
    "threads": 1,
    "exec_id": "e1",
}
SHELL = {
    "name": "default",
    "pid": 3,
    "busy": False,
    "queued": 0,
    "cwd": "/",
    "program": "/bin/bash",
}
STATS = {
    "uptime_ms": 1,
    "processes": 2,
    "running": 0,
    "shells": 1,
    "connections": 1,
    "disk": {"/workspace": {"total": 3, "used": 1, "free": 2, "inodes": 5, "inodes_free": 4}},
}
HELLO = {
    "generation": 1,
    "version": "0.1",
    "uid": 999,
    "user_uid": 1000,
    "shell": "/bin/bash",
    "features": ["pty"],
}
GOOD: list[tuple[Callable[[Any], object], dict[str, Any]]] = [
    (decode_exec, EXEC),
    (decode_execs, {"execs": [EXEC]}),
    (decode_entry, ENTRY),
    (decode_page, {"entries": [ENTRY], "next": "cursor"}),
    (decode_processes, {"processes": [PROCESS], "truncated": False}),
    (decode_shells, {"shells": [SHELL]}),
    (decode_stats, STATS),
    (decode_hello, HELLO),
]
HOSTILE: list[Any] = [
    -1,
    2**63,
    2**200,
    1.5,
    True,
    "x" * 300,
    "text",
    [],
    [1],
    {},
    {"b64": "AA=="},
    [[]],
    [None],
    "a\0b",
]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return every place where a value can be replaced."""
    found = [path] if path else []
    if isinstance(value, dict) and set(value) != {"b64"}:
        for key, inner in value.items():
            found += leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += leaves(inner, (*path, index))
    return found


def with_value(body: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed: Any = copy.deepcopy(body)
    at = changed
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return dict(changed)


@pytest.mark.parametrize(("decode", "body"), GOOD, ids=lambda one: getattr(one, "__name__", ""))
def test_a_valid_answer_is_decoded_and_unknown_fields_are_ignored(
    decode: Callable[[Any], object], body: dict[str, Any]
):
    assert decode(body) == decode({**body, "invented_later": [1, 2, 3]})


@pytest.mark.parametrize(("decode", "body"), GOOD, ids=lambda one: getattr(one, "__name__", ""))
def test_a_hostile_value_anywhere_is_refused_or_harmless(
    decode: Callable[[Any], object], body: dict[str, Any]
):
    for path in leaves(body):
        for value in HOSTILE:
            try:
                decode(with_value(body, path, value))
            except ProtocolViolation:
                continue
            except Exception as exc:
                raise AssertionError(f"{path} = {value!r} escaped as {exc!r}") from exc


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.sampled_from(GOOD), st.data())
def test_any_json_in_any_field_is_refused_or_decoded(
    good: tuple[Callable[[Any], object], dict[str, Any]], data: st.DataObject
):
    decode, body = good
    path = data.draw(st.sampled_from(leaves(body)))
    try:
        decode(with_value(body, path, data.draw(json_values)))
    except ProtocolViolation:
        return


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", "dancing"),
        ("kind", "other"),
        ("exit_code", 256),
        ("exit_code", -1),
        ("exit_code", True),
        ("signal", 0),
        ("stdout_bytes", None),
        ("stdout_bytes", -1),
        ("last_seq", 2**63),
        ("timed_out", 1),
        ("cwd", 5),
        ("exec_id", None),
        ("exec_id", "x" * 257),
    ],
)
def test_an_exec_with_a_field_out_of_range_is_refused(field: str, value: object):
    with pytest.raises(ProtocolViolation, match=field):
        decode_exec({**EXEC, field: value})


def test_an_entry_is_decoded_exactly():
    assert decode_entry(ENTRY) == FileStat(
        path="/workspace/a",
        name="\udcff",
        type="file",
        size=3,
        mode=0o644,
        mtime_unix=-5,
        uid=1000,
        gid=1000,
        target=None,
    )


def test_lists_longer_than_the_protocol_allows_are_refused():
    with pytest.raises(ProtocolViolation):
        decode_page({"entries": [ENTRY] * 5001, "next": None})
    with pytest.raises(ProtocolViolation):
        decode_execs({"execs": [EXEC] * 257})
    with pytest.raises(ProtocolViolation):
        decode_processes({"processes": [PROCESS] * 2001, "truncated": True})
    with pytest.raises(ProtocolViolation):
        decode_shells({"shells": [SHELL] * 65})


def test_exactly_the_error_codes_of_the_protocol_have_a_class():
    text = SPEC.read_text()
    section = text.split("## Error codes (closed set)")[1].split("##")[0]
    codes = set(re.findall(r"`([^`]+)`", section)[0].split())
    assert set(MEANINGS) == codes


@pytest.mark.parametrize("code", sorted(MEANINGS))
def test_each_error_has_the_message_of_the_runner_without_its_verb(code: str):
    error = error_for(code, "cannot run nosuch: No such file or directory", "exec.start")
    assert isinstance(error, SandkastenError)
    assert error.message == "cannot run nosuch: No such file or directory"
    assert error.details == {"runner_code": code}
    assert error_for(code, "", "exec.start").message == f"the runner answered {code}"


def test_an_unknown_code_selects_no_class():
    error = error_for("SystemExit", "x", "fs.read")
    assert type(error) is ProtocolViolation


@given(st.text(max_size=2000))
def test_hostile_messages_become_one_short_printable_line(message: str):
    error = error_for("io", message, "fs.read")
    assert error.message.isprintable()
    assert len(error.message) <= max(MAX_MESSAGE_CHARS, len("the runner answered io"))


def test_terminal_escapes_do_not_survive():
    assert "\x1b" not in error_for("io", "\x1b]52;c;aGk=\a", "fs.read").message
