"""A shell that was not scheduled by the kernel is not treated as unresponsive."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.patience import PATIENCE_S
from tests.security.harness import poll

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.security.harness import Box

pytestmark = pytest.mark.promise("P12")

FREEZER = Path("/sys/fs/cgroup/freezer/sandkasten")


@contextmanager
def without_a_turn(pid: int, group: Path) -> Iterator[None]:
    """Stop one process of a sandbox, as if the machine were too busy to schedule it."""
    alone = group / "alone"
    alone.mkdir()
    try:
        (alone / "cgroup.procs").write_text(str(pid))
        (alone / "freezer.state").write_text("FROZEN")
        yield
    finally:
        (alone / "freezer.state").write_text("THAWED")
        for left in (alone / "cgroup.procs").read_text().split():
            (group / "cgroup.procs").write_text(left)
        alone.rmdir()


def named(box: Box, name: str) -> list[int]:
    found = []
    for pid in (FREEZER / box.id / "cgroup.procs").read_text().split():
        try:
            if Path(f"/proc/{pid}/comm").read_text() == f"{name}\n" and not _dead(pid):
                found.append(int(pid))
        except OSError:
            continue
    return found


def _dead(pid: str) -> bool:
    return ") Z " in Path(f"/proc/{pid}/stat").read_text()


def test_after_a_deadline_the_runner_waits_until_the_shell_was_scheduled(make_box, debian):
    with make_box(debian) as box:
        box.exec("kept=7")
        (shell,) = named(box, "bash")
        # Long enough to stop the shell before it.
        running = box.begin("sleep 600", timeout_s=4, grace_s=0.1)
        poll("no sleep yet", lambda: not named(box, "sleep"))
        with without_a_turn(shell, FREEZER / box.id):
            poll("the sleep", lambda: named(box, "sleep"))
            # Longer than one has that had its turns.
            time.sleep(2)
            assert os.path.exists(f"/proc/{shell}")
        answer = running.result(PATIENCE_S)
        assert (answer.reply.timed_out, answer.reset) == (True, False)
        assert box.exec("echo $kept").text == "7\n"
        assert named(box, "bash") == [shell]


def test_a_scheduled_shell_that_does_not_answer_is_replaced(make_box, debian):
    with make_box(debian) as box:
        box.exec("kept=7")
        answer = box.exec("while :; do :; done", timeout_s=1, grace_s=0.1)
        assert (answer.reply.timed_out, answer.reset) == (True, True)
        assert box.exec("echo [$kept]").text == "[]\n"
