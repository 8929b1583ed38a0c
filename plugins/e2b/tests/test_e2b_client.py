"""E2B's published Python SDK on our daemon: what its documentation shows, on the real backend."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plugins.e2b.tests.conftest import e2b_variables
from tests import environments
from tests.client_programs import run_client

if TYPE_CHECKING:
    from tests.client.http.served import Served

PROGRAM = Path(__file__).with_name("e2b_drive.py")


@pytest.fixture(scope="module")
def seen(daemon: Served) -> dict[str, Any]:
    observed = run_client(PROGRAM, env=e2b_variables(daemon))
    assert observed["running"] is True
    return observed


@pytest.mark.promise("P79")
def test_commands_run_in_the_foreground_and_in_the_background(seen):
    numbers = "".join(f"{n}\n" for n in range(1, 200_001))
    assert seen["commands"] == {
        "run": [0, "out\n/home/user\n1 2\n", "err\n", True],
        "exit": [3, "before\n"],
        "long": hashlib.sha256(numbers.encode()).hexdigest(),
        "listed": [True],
        "stdin": "typed\n",
        "kill": [True, False],
        "killed": [-1, "signal: killed"],
        "connect": "got more\n",
        "timeout": True,
        "ended": True,
    }


@pytest.mark.promise("P79")
def test_files_are_written_read_listed_moved_and_removed(seen):
    assert seen["files"] == {
        "read": "grüße",
        "by_command": "grüße",
        "big": True,
        "streamed": True,
        "packed": True,
        "several": ["/home/user/a b", "/tmp/c"],
        "list": [
            ["a b", "file", "/home/user/a b"],
            ["big.bin", "file", "/home/user/big.bin"],
            ["link", "symlink", "/home/user/link"],
            ["notes", "dir", "/home/user/notes"],
            ["packed.txt", "file", "/home/user/packed.txt"],
        ],
        "deep": [
            "/home/user/a b",
            "/home/user/big.bin",
            "/home/user/link",
            "/home/user/notes",
            "/home/user/notes/text.txt",
            "/home/user/packed.txt",
        ],
        "info": ["text.txt", 7, "-rw-r--r--", "user"],
        "exists": [True, False],
        "rename": "/home/user/new/name",
        "removed": False,
        "make_dir": [True, False],
        "missing": True,
    }


@pytest.mark.promise("P90")
def test_metadata_of_files_are_kept_with_them(seen):
    given = {"author": "ada", "purpose": "upload"}
    assert seen["metadata"] == {
        "written": given,
        "info": given,
        "raw": given,
        "list": [given, given, None],
        "inside": "ada\n",
        "moved": given,
        "replaced": None,
    }


def test_watchers_report_changes_in_order(seen):
    kinds = seen["watch"]
    assert kinds[:3] == [["one", "create"], ["one", "write"], ["one", "chmod"]]
    assert ["two", "remove"] in kinds


def test_terminals_can_be_resized(seen):
    assert seen["pty"] == [0, True, True]


def test_lists_have_pages_and_filters(seen):
    assert seen["lists"] == {
        "all": True,
        "metadata": True,
        "paused": [],
        "kill": [True, False, False],
    }


def test_sandboxes_are_extended_paused_and_resumed(seen):
    assert seen["life"] == {
        "timeout": True,
        "metadata": {"user": "one two"},
        "pause": [True, False, "paused"],
        "connect": [True, "kept\n"],
        "metrics": [True, True, True],
    }


@pytest.mark.promise("P79")
def test_snapshots_and_forks_have_the_files_of_their_sandbox(seen):
    assert seen["copies"] == {
        "read": ["after", "of the fork", "before", "before"],
        "listed": True,
        "names": ["kept-state:default"],
        "delete": [True, False],
    }


@pytest.mark.promise("P79")
def test_a_sandbox_pauses_at_its_timeout_and_resumes(seen):
    assert seen["pauses"] == {
        "states": ["paused", "paused"],
        "command": "SandboxNotRunningException",
        "woken": "up\n",
        "running": [True, True],
        "lifecycle": ["pause", True],
    }


def test_signed_urls_lead_to_one_file_until_they_expire(seen):
    assert seen["urls"] == {
        "download": [200, "for all"],
        "other": 401,
        "expired": [401, "signature is already expired"],
        "upload": 200,
        "sent": "sent",
        "read_as_write": 401,
    }


def test_the_end_of_a_sandbox_is_reported_as_such(seen):
    assert seen["end"] == {
        "during": "SandboxNotRunningException",
        "after": "SandboxNotRunningException",
        "connect": True,
        "template": True,
    }


def test_the_program_of_the_guide_prints_what_the_guide_says(daemon):
    text = (environments.ROOT / "docs" / "guides" / "e2b.md").read_text()
    program = text.partition("```py\n")[2].partition("```")[0]
    done = subprocess.run(
        [str(environments.compat()), "-I", "-c", program],
        env=e2b_variables(daemon),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("42\n\n[True]\nhello.py 12\n", "")
