"""The process that created a sandbox is killed; the sandbox continues in the same shell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sandkasten import Sandbox
from tests.acceptance.conftest import sandkasten
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

MAKER = """
import sys, time
from sandkasten import Sandbox
box = Sandbox()
box.exec("mkdir -p '/workspace/a b'; cd '/workspace/a b'; export KEPT='one two'; local_one=3")
box.exec("sleep 500 &")
print(box.id, box.exec("echo $$").output.strip(), flush=True)
if sys.argv[1] == "busy":
    box.exec("echo begun >/tmp/begun; sleep 3; echo late >/tmp/late", timeout_seconds=100)
time.sleep(600)
"""


def _make_and_kill(how: str, wait_for: str | None = None) -> tuple[str, str]:
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, how],
        stdout=subprocess.PIPE,
        text=True,
    )
    with maker:
        assert maker.stdout is not None
        sandbox_id, shell = maker.stdout.readline().split()
        if wait_for is not None:
            with Sandbox.attach(sandbox_id, data_dir=os.environ["SANDKASTEN_DATA_DIR"]) as box:
                while not box.exists(wait_for):
                    pass
        maker.send_signal(signal.SIGKILL)
        maker.wait(PATIENCE_S)
    return sandbox_id, shell


@pytest.mark.real_start
@pytest.mark.promise("P28")
@pytest.mark.long(reason="`make test` kills the creator of a sandbox and of a command")
def test_after_kill_9_of_the_creator_the_command_line_continues_in_the_same_shell(data_dir: Path):
    sandbox_id, shell = _make_and_kill("idle")
    listed = sandkasten("ls", "--json")
    assert listed.status == 0, listed
    assert sandbox_id in listed.out
    assert sandbox_id in sandkasten("ls").out
    said = sandkasten("exec", sandbox_id, "echo $$; pwd; echo $KEPT $local_one; jobs")
    assert said.status == 0, said
    lines = said.out.splitlines()
    assert lines[:3] == [shell, "/workspace/a b", "one two 3"]
    assert "sleep 500" in said.out
    # Two more processes in turn, still the same shell.
    assert sandkasten("exec", sandbox_id, "cd /tmp").status == 0
    assert sandkasten("exec", sandbox_id, "echo $$; pwd").out == f"{shell}\n/tmp\n"
    assert sandkasten("rm", sandbox_id).status == 0
    assert sandbox_id not in sandkasten("ls").out


@pytest.mark.real_start
def test_after_kill_9_of_the_creator_a_python_object_continues(data_dir: Path):
    sandbox_id, shell = _make_and_kill("idle")
    assert sandbox_id in [info.id for info in Sandbox.list(data_dir=data_dir)]
    with Sandbox.attach(
        sandbox_id, data_dir=os.environ["SANDKASTEN_DATA_DIR"], destroy_on_exit=True
    ) as box:
        assert box.exec("echo $$; pwd").output == f"{shell}\n/workspace/a b\n"


@pytest.mark.real_start
def test_a_command_running_during_kill_9_runs_to_its_end(data_dir: Path):
    sandbox_id, shell = _make_and_kill("busy", wait_for="/tmp/begun")
    with Sandbox.attach(
        sandbox_id, data_dir=os.environ["SANDKASTEN_DATA_DIR"], destroy_on_exit=True
    ) as box:
        # The same shell: this waits in its queue behind the command of the dead.
        assert box.exec("cat /tmp/late; echo $$").output == f"late\n{shell}\n"
        assert [e.exit_code for e in box.execs() if e.status == "completed"][-1] == 0


def test_an_unknown_id_is_not_found(data_dir: Path):
    said = sandkasten("exec", "sbx_0123456789abcdef", "true")
    assert said.status == 125
    assert "hint:" in said.err
