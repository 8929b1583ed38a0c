"""Double spellings are folded in one place, and keyword arguments follow the values."""

from __future__ import annotations

from dataclasses import fields

import pytest

from sandkasten.errors import InvalidRequest
from sandkasten.model.commands.exec_values import CommandKeywords, ExecRequest, Pty
from sandkasten.model.request_spellings import exec_request, sandbox_options, without_doubles
from sandkasten.model.sandbox.sandbox_options import (
    SESSION_ONLY,
    SandboxKeywords,
    SandboxOptions,
    SessionKeywords,
)


def test_every_option_of_a_sandbox_is_a_keyword_argument():
    names = {one.name for one in fields(SandboxOptions)}
    assert set(SessionKeywords.__annotations__) == (names - {"image"}) | {
        "workspace",
        "session_key",
    }
    assert set(SandboxKeywords.__annotations__) == (names - SESSION_ONLY - {"image"}) | {
        "workspace"
    }


def test_every_option_of_a_command_is_a_keyword_argument():
    names = {one.name for one in fields(ExecRequest)} - {"command", "keep_stdin_open"}
    assert set(CommandKeywords.__annotations__) == names | {"timeout_ms"}


def test_options_fold_the_other_spellings():
    assert sandbox_options({"runtime": "python"}).image == "python"
    assert sandbox_options({"runtime": "python", "image": "node"}).image == "node"
    assert sandbox_options({"workspace": "w"}) == SandboxOptions(workspace_id="w")
    assert sandbox_options({"workspace": "w", "workspace_id": "w"}).workspace_id == "w"
    with pytest.raises(InvalidRequest) as error:
        sandbox_options({"workspace": "w", "workspace_id": "v"})
    assert error.value.details == {"field": "workspace"}


def test_none_is_the_same_as_absent():
    given = dict.fromkeys(one.name for one in fields(SandboxOptions))
    assert sandbox_options(given) == SandboxOptions()
    assert sandbox_options({"mounts": ["a"], "other": 1}) == SandboxOptions(mounts=("a",))


@pytest.mark.parametrize("name", ["mounts", "pip_packages", "npm_packages"])
def test_a_lone_string_is_not_a_list_of_names(name):
    with pytest.raises(InvalidRequest) as error:
        sandbox_options({name: "pandas"})
    assert error.value.details == {"field": name}


def test_a_command_folds_the_other_spellings():
    assert exec_request({"command": ["a", "b"], "workdir": "/tmp", "timeout_ms": 500}) == (
        ExecRequest(("a", "b"), cwd="/tmp", timeout_seconds=0.5)
    )
    assert exec_request({"cmd": "x", "cwd": "/a", "workdir": "/b"}).cwd == "/a"
    assert (
        exec_request({"cmd": "x", "timeout_ms": 500, "timeout_seconds": 9}).timeout_seconds == 0.5
    )
    assert exec_request({"cmd": "x", "stdin": "é"}).stdin == "é".encode()
    assert exec_request({"cmd": "x", "stdin_b64": "/w=="}).stdin == b"\xff"


@pytest.mark.parametrize(
    ("given", "pty"),
    [(False, None), (True, Pty()), ((3, 4), Pty(3, 4)), ({"rows": 3, "cols": 4}, Pty(3, 4))],
)
def test_a_terminal_is_a_flag_or_a_size(given, pty):
    assert exec_request({"cmd": "x", "pty": given}).pty == pty


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of cmd and command is required"),
        ({"cmd": "a", "command": "b"}, "exactly one of cmd and command is required"),
        ({"cmd": 3}, "command must be a str or a list of str, got int"),
        ({"cmd": b"ls"}, "command must be a str or a list of str, got bytes"),
        ({"cmd": ["ls", 3]}, "every argument of a command must be a str, got int"),
        ({"cmd": "a", "stdin": "b", "stdin_b64": "Yg=="}, "stdin and stdin_b64 exclude each other"),
        ({"cmd": "a", "stdin_b64": "?"}, "stdin_b64 is not valid base64"),
        ({"cmd": "a", "stdin": 3}, "stdin must be str or bytes, got int"),
        ({"cmd": "a", "timeout_ms": "5"}, "timeout_ms must be a number, got str"),
        ({"cmd": "a", "timeout_ms": True}, "timeout_ms must be a number, got bool"),
        (
            {"cmd": "a", "timeout_ms": 10**400},
            f"timeout_ms must be from 0 to 10000000000, got 1{'0' * 39}",
        ),
        ({"cmd": "a", "pty": (1, 2, 3)}, "pty must be true, false or a size of rows and columns"),
        ({"cmd": "a", "pty": 1}, "pty must be true, false or a size of rows and columns"),
        ({"cmd": "a", "pty": {"row": 1}}, "pty must be true, false or a size of rows and columns"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused(given, message):
    with pytest.raises(InvalidRequest) as refused:
        exec_request(given)
    assert refused.value.message == message
    assert refused.value.hint


def test_a_caller_may_use_both_names_when_they_agree():
    assert without_doubles({"cmd": "a", "command": "a", "x": 1}) == {"cmd": "a", "x": 1}
    with pytest.raises(InvalidRequest) as error:
        without_doubles({"cwd": "/a", "workdir": "/b"})
    assert error.value.details == {"field": "cwd"}
