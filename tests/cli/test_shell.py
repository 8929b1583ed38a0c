"""`shell` on a real terminal, with an unisolated sandbox."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess

import pytest

from tests.cli.conftest import UNISOLATED
from tests.cli.terminal import Person


def test_a_shell_in_a_sandbox_of_its_own_ends_with_its_status():
    with Person([*UNISOLATED, "shell"]) as person:
        person.wait_for("destroyed when this shell ends")
        person.type("A=kept\r")
        person.type("echo in-$A\r")
        person.wait_for("in-kept")
        person.type("exit 7\r")
        assert person.status() == 7


def test_our_terminal_is_restored_when_the_shell_is_killed():
    with Person([*UNISOLATED, "shell"]) as person:
        person.wait_for("destroyed when this shell ends")
        person.type("echo ready-$HOME\r")
        person.wait_for("ready-/")
        assert not person.cooked()
        os.kill(person.pid, signal.SIGTERM)
        assert person.status() == 143
        assert person.cooked()
        assert b"Traceback" not in person.seen


@pytest.mark.parametrize("stdin", ["/dev/null", "empty"])
def test_a_shell_without_input_ends_at_once(tmp_path, stdin):
    empty = tmp_path / "empty"
    empty.touch()
    with open(stdin if stdin == "/dev/null" else empty) as given:
        done = subprocess.run(
            [*UNISOLATED, "shell"], stdin=given, capture_output=True, timeout=60, check=False
        )
    assert (done.returncode, done.stdout) == (0, b"")


def test_a_shell_with_closed_input_ends_at_once():
    done = subprocess.run(
        f"{shlex.join(UNISOLATED)} shell <&-",
        shell=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"")


def test_input_from_a_pipe_goes_to_a_shell_without_a_terminal():
    done = subprocess.run(
        [*UNISOLATED, "shell"],
        input=b"echo from-$HOME; test -t 0 || echo plain\nexit 5\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.startswith(b"from-/")
    assert done.stdout.endswith(b"\nplain\n")
    assert done.returncode == 5
