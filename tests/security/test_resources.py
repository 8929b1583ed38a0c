"""A sandbox that exhausts resources is stopped and survives; its neighbours are unaffected."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

import pytest

from sandkasten import QuotaExceeded, Sandbox
from sandkasten.errors import SandboxLost
from sandkasten.model.sandbox.limits import MIB, Limits
from tests.patience import FAR_TOO_LATE_S, PATIENCE_S
from tests.security.harness import (
    EVICTED,
    ITS_TERMINALS,
    NAMED,
    NO_SIZES,
    ONE_USER,
    POD_MEMORY,
    POD_PIDS,
    POD_SOCKETS,
    PYTHON,
    ROOT,
    UNSIZED,
    WHOLE_SANDBOX,
    Box,
    poll,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.platform_choice import Ground

pytestmark = pytest.mark.promise("P25")

DEFINED = "bomb() { bomb | bomb & }"
FORK_BOMB = f"{DEFINED}; bomb"
MEMORY_BOMB = "x = bytearray()\nwhile True: x += bytes(10_000_000)"


def _unharmed(neighbour: Box) -> None:
    """Check that both ways of running a command work, each within its deadline."""
    neighbour.answers()
    assert neighbour.exec("echo shell").text == "shell\n"


@pytest.fixture
def sdk_box(data_dir: os.PathLike[str], neighbour: Box, ground: Ground) -> Iterator[Sandbox]:
    """A sandbox through the public object, for what only the engine knows."""
    with Sandbox(
        data_dir=os.path.join(data_dir, "sdk"),
        backend=ground.backend,
        limits={"mem_limit_mb": 128, "pids_limit": 64, "workspace_mb": 16, "tmp_mb": 8},
    ) as box:
        yield box
        neighbour.answers()


@pytest.mark.aspect("bomb")
@pytest.mark.not_on("gvisor", reason=WHOLE_SANDBOX)
@pytest.mark.parametrize("way", ["argv", "shell"])
def test_a_fork_bomb_is_stopped_by_the_process_limit_and_dead_at_its_deadline(way, box, neighbour):
    # From a subshell, and without another process: the bomb may leave no room for a second fork.
    script = f"{DEFINED}; (bomb) &\n" + ("exec sleep 60" if way == "argv" else "sleep 60")
    command = ["sh", "-c", script] if way == "argv" else script
    # On a busy machine it takes longer to come to the limit.
    for timeout_s in (2, 8, 30):
        bomb = box.begin(command, timeout_s=timeout_s, grace_s=0.3)
        for _ in range(3):
            _unharmed(neighbour)
        assert bomb.result(FAR_TOO_LATE_S).reply.timed_out
        refused = box.usage().pids_refused if ROOT else None
        if refused != 0:
            break
    if ROOT:
        # An engine does not count them, and in a container its files cannot be seen.
        assert box.container if refused is None else refused > 0
        poll("the bomb", lambda: box.usage().pids > 5)
    box.answers()
    assert box.exec("echo shell").text == "shell\n"


@pytest.mark.aspect("bomb")
@pytest.mark.own_cell(NAMED)
@pytest.mark.not_on("gvisor", reason=WHOLE_SANDBOX)
def test_a_detached_fork_bomb_can_be_killed_through_its_command(box, neighbour):
    calm = box.usage().pids if ROOT else 0
    answer = box.exec(["sh", "-c", FORK_BOMB], exec_id="bomb")
    assert answer.reply.ended
    _unharmed(neighbour)
    box.call("exec.signal", exec_id="bomb", signal=9, tree=True)
    box.answers()
    if ROOT:
        poll("the bomb", lambda: box.usage().pids > calm + 1)


@pytest.mark.aspect("bomb")
@pytest.mark.own_cell(NAMED)
@pytest.mark.not_on("gvisor", reason=WHOLE_SANDBOX)
@pytest.mark.timeout(600)
def test_listing_processes_beside_a_fork_bomb_works(box):
    box.start(["sh", "-c", FORK_BOMB], exec_id="bomb")
    # Beside it each takes most of a second.
    for _ in range(10):
        assert box.processes()
    box.call("exec.signal", exec_id="bomb", signal=9, tree=True)
    box.answers()


# Prints what the kernel holds for its sockets, as /proc/net lists it, once that is over a bound or
# no longer grows.
FULL_SOCKETS = """
import socket, sys
kind, most = sys.argv[1], int(sys.argv[2])
kinds = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
kept, held, full = [], 0, 0
while held < most and full < 5:
    server = socket.socket(type=kinds[kind])
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    server.bind(("127.0.0.1", 0))
    sender = socket.socket(type=kinds[kind])
    if kind == "tcp":
        server.listen()
    sender.connect(server.getsockname())
    sender.setblocking(False)
    # A connection counts once it is accepted.
    kept += [server, sender, server.accept() if kind == "tcp" else None]
    try:
        for _ in range(300):
            sender.send(bytes(50_000))
    except OSError:
        pass
    rows = [line.split()[4].split(":") for line in open("/proc/net/" + kind).readlines()[1:]]
    before, held = held, sum(int(sent, 16) + int(received, 16) for sent, received in rows)
    full = 0 if held > before + 100_000 else full + 1
print(held)
"""


@pytest.mark.aspect("bomb")
@pytest.mark.needs_program("python3")
@pytest.mark.not_on("gvisor", reason="its own network stack holds the buffers in its own memory")
@pytest.mark.not_on("kubernetes", reason=POD_SOCKETS)
@pytest.mark.root
@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_the_buffers_of_sockets_are_limited(kind, make_box, neighbour):
    with make_box(Limits(memory_bytes=64 * MIB)) as box:
        if any(one.limit == "memory" for one in box.cell.unenforced):
            pytest.skip("the engine does not limit them here, and says so")
        answer = box.exec([PYTHON, "-c", FULL_SOCKETS, kind, str(96 * MIB)])
        # On cgroup v2 the bomb is killed; on v1 its buffers do not grow beyond their limit.
        assert answer.code == 137 or int(answer.text) < 32 * MIB
        _unharmed(neighbour)


@pytest.mark.only_on("gvisor", reason="elsewhere a bomb does not end its sandbox")
@pytest.mark.parametrize("bomb", ["processes", "memory"])
def test_a_bomb_ends_at_most_its_own_sandbox(bomb, make_box, neighbour):
    memory = ["sh", "-c", "tail /dev/zero"]
    with make_box() as box:
        command = ["sh", "-c", FORK_BOMB + "; sleep 60"] if bomb == "processes" else memory
        exploding = box.begin(command, timeout_s=15, grace_s=0.3)
        for _ in range(5):
            _unharmed(neighbour)
        with contextlib.suppress(SandboxLost):
            exploding.result(FAR_TOO_LATE_S)
        assert box.usage().memory_peak_bytes <= box.limits.memory_bytes + MIB
        assert box.usage().pids <= box.limits.pids
        _unharmed(neighbour)
        box.destroy()
        poll("what is left", box.leftovers)
    _unharmed(neighbour)


def _several(box: Box) -> None:
    for _ in range(5):
        box.exec(["true"])


@pytest.mark.own_cell(NAMED)
@pytest.mark.not_on("gvisor", reason=WHOLE_SANDBOX)
@pytest.mark.not_on("kubernetes", reason=POD_PIDS)
@pytest.mark.root
def test_a_full_process_table_is_a_typed_error_and_not_a_result(box):
    many = "for i in $(seq 600); do sleep 3000 & done; wait"
    box.start(["sh", "-c", many], exec_id="full", timeout_s=3000)
    poll("room", lambda: box.usage().pids < box.limits.pids - 1 and box.usage().pids)
    with pytest.raises(QuotaExceeded):
        _several(box)
    box.call("exec.signal", exec_id="full", signal=9, tree=True)
    poll("the tree", lambda: box.usage().pids > 5)
    box.answers()


@pytest.mark.needs_program("python3")
@pytest.mark.not_on("gvisor", reason=WHOLE_SANDBOX)
@pytest.mark.not_on("kubernetes", reason=POD_MEMORY)
@pytest.mark.root
@pytest.mark.parametrize("way", ["argv", "shell"])
def test_a_memory_bomb_dies_and_the_session_lives(way, box, neighbour):
    shell = None
    if way == "shell":
        box.exec("kept=1")
        shell = box.shell_pid()
        box.write("/workspace/bomb.py", MEMORY_BOMB.encode())
        answer = box.exec(f"{PYTHON} /workspace/bomb.py", timeout_s=60)
        assert answer.code == 137 or answer.reset
        if not answer.reset:
            assert box.exec("echo $kept").text == "1\n"
            assert box.shell_pid() == shell
    else:
        answer = box.exec([PYTHON, "-I", "-c", MEMORY_BOMB], timeout_s=60)
        assert answer.reply.signal == 9
        assert answer.reply.oom_suspect
    assert not answer.reply.timed_out
    assert box.usage().oom_kills >= 1
    assert box.usage().memory_peak_bytes <= box.limits.memory_bytes + MIB
    _unharmed(neighbour)


@pytest.mark.aspect("bomb")
@pytest.mark.needs_program("python3")
@pytest.mark.not_on("gvisor", reason=WHOLE_SANDBOX)
@pytest.mark.not_on("kubernetes", reason=POD_MEMORY)
@pytest.mark.root
def test_a_memory_bomb_of_many_processes_does_not_kill_the_runner(box, neighbour):
    """None of them is much larger than the runner's shell; the runner must not be the victim."""
    code = f"""
import os, time
for n in range(60):
    if os.fork() == 0:
        keep = bytearray(8 * {MIB})
        for at in range(0, len(keep), 4096): keep[at] = 1
        time.sleep(30)
        os._exit(0)
# Half of them have no room.
for n in range(20): os.wait()
"""
    box.exec([PYTHON, "-I", "-c", code], grace_s=0.2)
    assert box.usage().oom_kills >= 1
    assert os.path.exists(f"/proc/{box.host_pid}")
    _unharmed(neighbour)
    box.answers()


@pytest.mark.own_cell(NAMED)
@pytest.mark.not_on("gvisor", reason=WHOLE_SANDBOX)
@pytest.mark.not_on("kubernetes", reason=POD_MEMORY)
@pytest.mark.root
def test_small_processes_that_fill_the_memory_do_not_kill_the_runner(box, neighbour):
    """Each is as small as can be (a sleeping dash with a full environment)."""
    script = (
        "x=$(head -c 900000 /dev/zero | tr '\\0' x); while :; do sh -c 'sleep 100; :' \"$1\" & done"
    )
    command = ["sh", "-c", f"{script} 2>/dev/null"]
    box.exec(command, exec_id="small", timeout_s=4, grace_s=0.2)
    assert os.path.exists(f"/proc/{box.host_pid}")
    _unharmed(neighbour)
    # When the kernel chose bash itself, the command ended early and let its children go.
    box.call("exec.signal", exec_id="small", signal=9, tree=True)


@pytest.mark.root
@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_memory_kept_in_files_is_counted_and_bounded(place, box, neighbour):
    fill = f"dd if=/dev/zero of={place}/full bs=1048576 count=1024"
    answer = box.exec(["sh", "-c", f"{fill}; stat -c %s {place}/full"])
    assert int(answer.text) <= box.limits.tmp_bytes
    assert b"No space left" in answer.stderr
    _unharmed(neighbour)
    box.exec(["rm", f"{place}/full"])


def test_a_full_tmp_leaves_shell_and_files_usable(box):
    box.exec(
        "head -c 1073741824 /dev/zero >/tmp/full; head -c 1073741824 /dev/zero >/dev/shm/full",
        timeout_s=60,
    )
    assert box.exec("echo still here").text == "still here\n"
    assert box.exec("exit 3").reset
    assert box.exec("echo again").text == "again\n"
    with pytest.raises(QuotaExceeded):
        box.write("/tmp/more", b"x" * 100_000)
    assert box.write("/workspace/fine", b"x").size == 1
    assert box.remove("/tmp/full") == 1
    assert box.write("/tmp/more", b"x" * 100_000).size == 100_000


@pytest.mark.promise("P26")
@pytest.mark.not_on(*UNSIZED, reason=NO_SIZES)
@pytest.mark.not_on("kubernetes", reason=EVICTED)
def test_a_full_workspace_is_a_typed_error_and_leaves_the_old_file(box, neighbour):
    box.write("/workspace/kept", b"old")
    with pytest.raises(QuotaExceeded):
        box.write("/workspace/kept", bytes(box.limits.workspace_bytes + MIB))
    assert box.read("/workspace/kept") == b"old"
    assert [e.name for e in box.entries("/workspace") if e.type == "file"] == ["kept"]
    fill = "dd if=/dev/zero of=/workspace/full bs=1048576 count=1024"
    answer = box.exec(fill, timeout_s=60)
    assert answer.code != 0
    assert b"No space left" in answer.stderr
    assert neighbour.write("/workspace/n", bytes(MIB)).size == MIB
    assert box.exec("echo ok").text == "ok\n"
    box.remove("/workspace/full")
    assert box.write("/workspace/again", bytes(MIB)).size == MIB


@pytest.mark.not_on(*UNSIZED, reason=NO_SIZES)
@pytest.mark.not_on("kubernetes", reason=EVICTED)
def test_the_home_directory_counts_in_the_workspace_quota(box):
    answer = box.exec("head -c 1073741824 /dev/zero >~/full; stat -c %s ~/full", timeout_s=60)
    assert int(answer.text) <= box.limits.workspace_bytes


@pytest.mark.needs_program("python3")
@pytest.mark.not_on(*UNSIZED, reason=NO_SIZES)
@pytest.mark.not_on("kubernetes", reason=EVICTED)
def test_a_session_survives_using_up_the_inodes(box, neighbour):
    code = """
import json, os
os.makedirs("/workspace/many")
made = 0
try:
    while made < 300000:
        os.close(os.open(f"/workspace/many/{made}", os.O_CREAT | os.O_WRONLY))
        made += 1
    print(json.dumps([made, "no end"]))
except OSError as exc:
    print(json.dumps([made, exc.errno]))
"""
    made, error = box.python(code, timeout_s=90)
    if ROOT:
        assert error == 28
    assert made > 1000
    if error == 28:
        with pytest.raises(QuotaExceeded):
            box.write("/workspace/one-more", b"x")
    neighbour.write("/workspace/other", b"x")
    assert box.exec("echo ok").text == "ok\n"
    assert box.remove("/workspace/many", recursive=True) == made + 1


@pytest.mark.needs_program("python3")
def test_using_up_the_descriptors_affects_only_that_process(box):
    code = """
import json, os
held = []
try:
    while True: held.append(os.open("/dev/null", os.O_RDONLY))
except OSError as exc:
    print(json.dumps([len(held) < 5000, exc.errno]))
"""
    assert box.python(code) == [True, 24]
    assert box.exec("ulimit -n 1000000 || echo no").text == "no\n"


@pytest.mark.aspect("neighbour")
def test_a_busy_sandbox_leaves_its_neighbour_its_share_of_the_processor(box, neighbour):
    """Measured by what each used in the same time, so that other load counts for both."""
    burn = box.start(["sh", "-c", "for i in 1 2 3 4 5 6; do (while :; do :; done) & done; wait"])
    counting = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo $i"
    assert neighbour.exec(["sh", "-c", counting]).text == "300000\n"
    if ROOT:
        alone = neighbour.start(["sh", "-c", "while :; do :; done"])
        # Only the time counts in which both are at work.
        _used(neighbour, neighbour.usage().cpu_usec + 50_000)
        before = [one.usage().cpu_usec for one in (box, neighbour)]
        _used(neighbour, before[1] + 300_000)
        burnt, had = (
            one.usage().cpu_usec - was for one, was in zip((box, neighbour), before, strict=True)
        )
        # One process beside six has as much as they; without groups it would have a sixth.
        assert had > burnt / 5
        neighbour.call("exec.signal", exec_id=alone, signal=9, tree=True)
        assert neighbour.wait(alone).signal == 9
    box.call("exec.signal", exec_id=burn, signal=9, tree=True)
    reply = box.wait(burn)
    assert (reply.signal, reply.timed_out) == (9, False), "it burnt all the while"


def _used(box, usec):
    """Wait until a sandbox has used so much processor time."""
    deadline = time.monotonic() + PATIENCE_S
    while box.usage().cpu_usec < usec:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.root
def test_processor_time_stays_within_its_limit(make_box):
    with make_box(Limits(cpus=0.3, workspace_bytes=16 * MIB)) as box:
        box.answers()
        before, began = box.usage().cpu_usec, time.monotonic()
        box.exec(["sh", "-c", "for i in 1 2 3; do (while :; do :; done) & done; sleep 2"],
                 timeout_s=2.5, grace_s=0.1)  # fmt: skip
        share = (box.usage().cpu_usec - before) / 1e6 / (time.monotonic() - began)
        assert share < 0.45


@pytest.mark.not_on("gvisor", reason=WHOLE_SANDBOX)
@pytest.mark.needs_program("python3")
def test_many_full_pipes_do_not_affect_the_session(box, neighbour):
    code = """
import fcntl, json, os
held = []
try:
    while len(held) < 3000:
        r, w = os.pipe()
        held += [r, w]
        try:
            fcntl.fcntl(w, 1031, 1 << 20)
        except OSError:
            pass
        os.set_blocking(w, False)
        try:
            while True: os.write(w, b"x" * 65536)
        except OSError:
            pass
except (OSError, MemoryError):
    pass
print(json.dumps(len(held)))
"""
    answer = box.exec([PYTHON, "-I", "-c", code], timeout_s=60)
    assert answer.code == 0 or answer.reply.signal == 9
    _unharmed(neighbour)


# ---- what the kernel counts for the whole machine and not for one sandbox

INOTIFY = """
import ctypes, json
libc = ctypes.CDLL(None, use_errno=True)
made = 0
while made < int(__import__("sys").argv[1]) and libc.inotify_init1(0) >= 0:
    made += 1
print(json.dumps(made), flush=True)
__import__("time").sleep(float(__import__("sys").argv[2]))
"""


@pytest.mark.needs_program("python3")
@pytest.mark.root
@pytest.mark.not_on("docker", "kubernetes", reason=ONE_USER)
def test_one_sandbox_cannot_use_up_the_hosts_inotify_instances(box, neighbour):
    started = box.start([PYTHON, "-I", "-c", INOTIFY, "100000", "90"], timeout_s=100)
    poll("the hoarder", lambda: not box.kept(started).stdout)
    assert neighbour.python(INOTIFY, "10", "0") == 10
    box.call("exec.signal", exec_id=started, signal=9)


AIO = """
import ctypes, json, platform, sys, time
libc = ctypes.CDLL(None, use_errno=True)
number = 206 if platform.machine() == "x86_64" else 0
kept, total, size = [], 0, int(sys.argv[1])
while size and total < int(sys.argv[2]):
    context = ctypes.c_ulong(0)
    if libc.syscall(number, size, ctypes.byref(context)) == 0:
        kept.append(context); total += size
    else:
        size //= 2
print(json.dumps(total), flush=True)
time.sleep(float(sys.argv[3]))
"""


@pytest.mark.needs_program("python3")
def test_one_sandbox_cannot_use_up_the_hosts_asynchronous_requests(box, neighbour):
    """fs.aio-max-nr is one number for the host; a database on the host depends on it."""
    with open("/proc/sys/fs/aio-nr") as file:
        before = int(file.read())
    with open("/proc/sys/fs/aio-max-nr") as file:
        most = int(file.read())
    started = box.start([PYTHON, "-I", "-c", AIO, "16384", "1000000000", "90"], timeout_s=100)
    poll("the hoarder", lambda: not box.kept(started).stdout)
    with open("/proc/sys/fs/aio-nr") as file:
        taken = int(file.read()) - before
    box.call("exec.signal", exec_id=started, signal=9)
    assert taken < most // 4


PTYS = """
import json, os, time
kept = []
for _ in range(int(__import__("sys").argv[1])):
    try:
        kept.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        break
print(json.dumps(len(kept)), flush=True)
time.sleep(float(__import__("sys").argv[2]))
"""


@pytest.mark.needs_program("python3")
@pytest.mark.not_on("docker", "kubernetes", reason=ITS_TERMINALS)
def test_one_sandbox_cannot_use_up_the_hosts_terminals(box, neighbour):
    started = box.start([PYTHON, "-I", "-c", PTYS, "4000", "90"], timeout_s=100)
    poll("the hoarder", lambda: not box.kept(started).stdout)
    assert neighbour.exec(["echo", "ok"], pty=True).stdout == b"ok\r\n"
    box.call("exec.signal", exec_id=started, signal=9)


# ---- what the engine says of it


@pytest.mark.needs_program("python3")
@pytest.mark.only_on("host", reason="the public object is asked on the files of the machine")
@pytest.mark.not_on("gvisor", reason=WHOLE_SANDBOX)
@pytest.mark.root
def test_the_verdict_on_a_memory_bomb_is_oom(sdk_box):
    result = sdk_box.exec([PYTHON, "-I", "-c", MEMORY_BOMB])
    assert (result.oom_killed, result.why and result.why.code) == (True, "OOM")
    assert result.exit_code is None or result.exit_code == 137
    result = sdk_box.exec(f"{PYTHON} -c '{MEMORY_BOMB.replace(chr(10), chr(10))}'")
    assert (result.oom_killed, result.why and result.why.code) == (True, "OOM")
    assert sdk_box.exec("echo ok").output == "ok\n"


@pytest.mark.not_on("gvisor", reason=WHOLE_SANDBOX)
@pytest.mark.needs_program("python3")
@pytest.mark.only_on("host", reason="the public object is asked on the files of the machine")
@pytest.mark.root
def test_the_verdict_on_too_many_processes_is_pids(sdk_box):
    code = "import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(1); os._exit(0)"
    result = sdk_box.exec([PYTHON, "-I", "-c", code])
    assert result.exit_code == 1
    assert result.why is not None
    assert result.why.code == "PIDS"


@pytest.mark.only_on("host", reason="the public object is asked on the files of the machine")
def test_the_verdict_on_a_full_workspace_is_quota(sdk_box):
    result = sdk_box.exec("head -c 104857600 /dev/zero >/workspace/full")
    assert result.exit_code != 0
    assert result.why is not None
    assert result.why.code == "QUOTA"


@pytest.mark.only_on("host", reason="the public object is asked on the files of the machine")
def test_the_verdict_on_a_deadline_is_timeout(sdk_box):
    result = sdk_box.exec("sleep 50", timeout_ms=400)
    assert result.timed_out
    assert result.why is not None
    assert result.why.code == "TIMEOUT"


@pytest.mark.only_on("host", reason="the public object is asked on the files of the machine")
def test_an_ordinary_failure_has_no_verdict(sdk_box):
    result = sdk_box.exec("false")
    assert (result.exit_code, result.why, result.oom_killed) == (1, None, False)
