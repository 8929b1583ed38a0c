"""`shell` on a real terminal, with an unisolated sandbox."""

from __future__ import annotations

import os
import signal
import subprocess

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
        assert person.status() != 0
        assert person.cooked()


def test_input_from_a_pipe_is_typed_into_the_shell():
    done = subprocess.run(
        [*UNISOLATED, "shell"],
        input=b"echo from-$HOME\nexit 5\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert b"from-/" in done.stdout
    assert done.returncode == 5
