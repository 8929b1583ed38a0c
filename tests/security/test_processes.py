"""Processes that resist being killed, and processes that must survive."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sandkasten.model.sandbox.limits import MIB, Limits
from tests.patience import FAR_TOO_LATE_S
from tests.security.harness import POD_PIDS, PYTHON, Box, paced, poll, sized

if TYPE_CHECKING:
    from tests.security.harness import Answer

pytestmark = pytest.mark.promise("P13")

DAEMON = """
import os, signal, sys, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
if os.fork(): os._exit(0) if len(sys.argv) < 2 else time.sleep(1000)
os.setsid()
if os.fork(): os._exit(0)
os.setsid() if os.getpid() != os.getsid(0) else None
for fd in (0, 1, 2): os.close(fd)
time.sleep(1000)
"""


def _others(box: Box) -> list[tuple[int, str]]:
    """Return everything that runs inside and is not ours."""
    ours = {box.shell_pid(), 1}
    return [
        (p.pid, p.name)
        for p in box.processes()
        if p.pid not in ours and p.state != "Z" and "runner" not in p.name
    ]


@pytest.mark.needs_program("python3")
def test_a_daemon_that_ignores_signals_is_dead_at_the_timeout(box):
    answer = box.exec([PYTHON, "-I", "-c", DAEMON, "stay"], timeout_s=1.5, grace_s=0.5)
    assert answer.reply.timed_out
    poll("the daemon", lambda: _others(box))


@pytest.mark.needs_program("python3")
def test_a_daemon_started_by_a_shell_command_is_dead_at_its_timeout(box):
    box.write("/workspace/daemon.py", DAEMON.encode())
    box.exec("sleep 555 &")
    answer = box.exec(f"{PYTHON} -I /workspace/daemon.py stay", timeout_s=1.5, grace_s=0.5)
    assert answer.reply.timed_out
    if not _replaced(box, answer):
        poll("the daemon", lambda: (seen := _others(box)) and [n for _, n in seen] != ["sleep"])
        assert _others(box) != []


def test_a_shell_deadline_kills_what_the_command_started_and_spares_earlier_jobs(box):
    box.exec("sleep 555 &")
    answer = box.exec("(trap '' TERM; exec sleep 999) & sleep 50", timeout_s=1, grace_s=0.3)
    assert answer.reply.timed_out
    wanted = [] if _replaced(box, answer) else [("sleep", "555")]

    def otherwise() -> object:
        left = [p.cmdline for p in box.processes() if p.name == "sleep" and p.state != "Z"]
        return left != wanted and (left, wanted)

    poll("what should be left", otherwise)


def _replaced(box: Box, answer: Answer) -> bool:
    """A shell that did not survive the sweep took its job along; the next command reports it."""
    return answer.reset or box.exec("true").reset


@pytest.mark.needs_program("python3")
def test_a_detached_daemon_ends_with_the_sandbox(box):
    box.exec([PYTHON, "-I", "-c", DAEMON])
    before = len(box.host_processes())
    assert before >= 2
    box.destroy()
    poll("processes", box.leftovers)


CHAIN = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        pass
"""


@pytest.mark.needs_program("python3")
def test_a_fork_chain_faster_than_kill_is_dead_at_the_deadline(box):
    code = "import os, time\nif os.fork() == 0:\n" + "".join(
        f"    {line}\n" for line in CHAIN.splitlines()
    )
    answer = box.exec([PYTHON, "-I", "-c", code + "time.sleep(600)"], timeout_s=1, grace_s=0.3)
    assert answer.reply.timed_out
    assert answer.reply.duration_ms < FAR_TOO_LATE_S * 1000
    poll("the chain", lambda: _others(box))


@pytest.mark.needs_program("python3")
def test_a_fork_chain_does_not_survive_destroy(box):
    box.start([PYTHON, "-I", "-c", CHAIN], timeout_s=60)
    links: set[int] = set()

    def too_few() -> bool:
        links.update(pid for pid, _ in _others(box))
        return len(links) < 4

    poll("a chain of few links", too_few)
    box.destroy()
    poll("the chain", box.leftovers)


@pytest.mark.root
@pytest.mark.not_on("kubernetes", reason=POD_PIDS)
def test_a_tree_of_500_is_dead_at_its_deadline(make_box, neighbour):
    with make_box(Limits(memory_bytes=1024 * MIB, pids=800, workspace_bytes=16 * MIB)) as box:
        script = (
            f"trap '' TERM; for i in $(seq {paced(500, box.ground)});"
            " do (trap '' TERM; exec sleep 1000) & done; echo up; wait"
        )
        # It is up when its deadline comes; a busy machine needs longer for that.
        for timeout_s in (3, 12, 45):
            answer = box.exec(["sh", "-c", script], timeout_s=timeout_s, grace_s=0.2)
            assert answer.reply.timed_out
            poll("the tree", lambda: _others(box))
            if answer.text == "up\n":
                break
        assert answer.text == "up\n"
        assert answer.reply.duration_ms < FAR_TOO_LATE_S * 1000
        box.answers()
        neighbour.answers()


@pytest.mark.needs_program("python3")
@pytest.mark.timeout(600)
def test_zombies_are_reaped(box):
    count = paced(sized(4_000, 100_000), box.ground)
    code = f"""
import os
for n in range({count}):
    pid = os.fork()
    if pid == 0:
        # The grandchild is orphaned: only the first process or a subreaper can reap it.
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.waitpid(pid, 0)
"""
    # Two generations each: half of the forks end up as somebody else's children.
    code = code.replace(f"range({count})", f"range({count // 2})")
    answer = box.exec([PYTHON, "-I", "-c", code], timeout_s=400)
    assert answer.code == 0, answer.stderr[-500:]
    poll("zombies", lambda: [p for p in box.processes() if p.state == "Z"])


def test_orphans_of_a_shell_are_reaped(box):
    box.exec("for i in $(seq 200); do (true &) ; done")
    poll("zombies", lambda: [p for p in box.processes() if p.state == "Z"])


@pytest.mark.needs_program("python3")
def test_a_signal_to_a_tree_reaches_its_daemons(box):
    exec_id = box.start([PYTHON, "-I", "-c", DAEMON, "stay"], timeout_s=60)
    poll("the daemon", lambda: len(_others(box)) < 2)
    box.call("exec.signal", exec_id=exec_id, signal=9, tree=True)
    poll("the tree", lambda: _others(box))


def test_the_process_list_shows_only_the_sandbox(box):
    box.start(["sleep", "777"])
    # Begun is not yet become: for an instant it has the name of what started it.
    poll("no sleep", lambda: all(p.name != "sleep" for p in box.processes()))
    listed = box.processes()
    assert len(listed) < 10
    assert os.getpid() not in {p.pid for p in listed} or os.getpid() < 50


@pytest.mark.needs_program("python3")
def test_hostile_process_names_are_listed_unchanged(box):
    code = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b") R 1 1 \\n\\xff", 0, 0, 0)
print("up", flush=True)
time.sleep(50)
"""
    started = box.start([PYTHON, "-I", "-c", code, "\x1b]0;evil\x07", "a\nb"])
    poll("it", lambda: box.kept(started).stdout != b"up\n")
    names = [p.name.encode(errors="surrogateescape") for p in box.processes()]
    assert b") R 1 1 \n\xff" in names


@pytest.mark.needs_program("python3")
def test_every_pseudo_terminal_ends_with_its_command(box):
    for _ in range(40):
        assert box.exec(["true"], pty=True).code == 0
    code = "import json, os; print(json.dumps(os.listdir('/dev/pts')))"
    poll("terminals", lambda: (seen := box.python(code)) != ["ptmx"] and seen)


@pytest.mark.root  # nobody else may look
def test_descriptors_of_the_runner_do_not_grow_with_commands(box):
    def count() -> int:
        return len(os.listdir(f"/proc/{box.host_pid}/fd"))

    box.exec("true")
    box.exec(["true"])
    before = count()
    for n in range(150):
        box.exec(["true"], pty=n % 3 == 0)
        box.exec("true")
    poll("descriptors", lambda: (now := count()) > before + 2 and now)
