"""Paths, links, special files and sizes that a hostile session can use against file requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time

import pytest

from sandkasten.errors import (
    FileError,
    FileNotFound,
    FileTrouble,
    InvalidRequest,
    NotRegular,
    PayloadTooLarge,
    PolicyDenied,
    SandkastenError,
)
from sandkasten_contract.shared_sandbox_cases import each
from tests.patience import FAR_TOO_LATE_S, PATIENCE_S
from tests.security.harness import LONG, PYTHON, ROOT, Box, paced, poll, sized

pytestmark = pytest.mark.promise("P18")

WITHIN = ["/workspace", "/tmp", "/home/sandbox"]
DENY = ["/etc/passwd", "/etc/shadow", "/root", "/proc", "/sys", "/dev"]


@each(
    "path",
    [
        "../../../../../../../../{canary}/open.txt",
        "/{canary}/open.txt",
        "/workspace/../../{canary}/open.txt",
        "%2e%2e/%2e%2e/{canary}/open.txt",
        "..%2f..%2f{canary}/open.txt",
        "/proc/1/root/{canary}/open.txt",
        "/proc/self/root/{canary}/open.txt",
        "/proc/self/cwd/{canary}/open.txt",
        "/proc/1/cwd/{canary}/open.txt",
        "/proc/thread-self/root/{canary}/open.txt",
        "/dev/fd/../../{canary}/open.txt",
    ],
)
def test_no_path_leads_to_the_host(path, canary, canary_secret, shared_box):
    asked = path.format(canary=str(canary).lstrip("/"))
    for work in (
        lambda: shared_box.read(asked),
        lambda: shared_box.stat(asked).name.encode(),
        lambda: shared_box.tar_out(asked),
        lambda: repr(shared_box.entries(os.path.dirname(asked))).encode(),
    ):
        with pytest.raises(SandkastenError):
            assert canary_secret.encode() not in work()
    with pytest.raises(SandkastenError):
        shared_box.write(asked, b"x", parents=False)
    with pytest.raises(SandkastenError):
        shared_box.remove(asked)
    assert (canary / "open.txt").read_text().strip() == canary_secret


@each("target", ["{canary}/open.txt", "{canary}", "../../../..{canary}/open.txt"])
def test_no_symlink_leads_to_the_host(target, canary, canary_secret, box):
    box.exec(["ln", "-s", target.format(canary=canary), "/workspace/link"])
    with pytest.raises(FileNotFound):
        box.read("/workspace/link")
    with pytest.raises(SandkastenError):
        box.read("/workspace/link/open.txt")
    assert box.stat("/workspace/link", follow=False).type == "symlink"
    assert box.remove("/workspace/link") == 1
    assert (canary / "open.txt").read_text().strip() == canary_secret


def test_looping_and_dangling_links_are_typed_errors_at_once(box):
    box.exec("cd /workspace; ln -s b a; ln -s a b; ln -s nowhere dangling; ln -s . dot")
    with pytest.raises(FileTrouble):
        box.read("/workspace/a")
    with pytest.raises(FileNotFound):
        box.read("/workspace/dangling")
    assert {e.name for e in box.entries("/workspace", recursive=True)} >= {
        "a",
        "b",
        "dangling",
        "dot",
    }
    # Forty links are followed, not more: no endless walk.
    with pytest.raises(SandkastenError):
        box.stat("/workspace/" + "dot/" * 100 + "a")
    assert box.remove("/workspace/dot") == 1


@each(
    "path",
    [
        *(f"/proc/self/fd/{n}" for n in (0, 3, 4)),
        *("/proc/1/mem", "/proc/self/mem", "/proc/self/pagemap"),
        *("/dev/zero", "/dev/random", "/dev/tty", "/dev/full", "/dev/ptmx", "/dev/stdin"),
    ],
)
def test_a_special_file_is_refused_at_once(path, shared_box):
    # One that is waited for never comes to an end.
    with pytest.raises((NotRegular, FileNotFound, FileError, PolicyDenied)):
        shared_box.read(path)
    with pytest.raises(SandkastenError):
        shared_box.write(path, b"x")


@pytest.mark.needs_program("python3")
@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/workspace/fifo", "/workspace/socket"])
def test_reading_a_special_file_names_its_kind(path, box):
    box.exec("mkfifo /workspace/fifo")
    box.exec([PYTHON, "-c", "import socket; socket.socket(1).bind('/workspace/socket')"])
    with pytest.raises(NotRegular):
        box.read(path)
    with pytest.raises(NotRegular):
        box.write(path, b"x")
    # Through a link it is the same thing.
    box.exec(["ln", "-s", path, "/workspace/link"])
    with pytest.raises(NotRegular):
        box.read("/workspace/link")
    with pytest.raises(NotRegular):
        box.write("/workspace/link", b"x")


def test_a_fifo_with_a_peer_does_not_block_the_runner(box):
    box.exec("mkfifo /workspace/f; (sleep 100 >/workspace/f &) ; (sleep 100 </workspace/f &)")
    with pytest.raises(NotRegular):
        box.read("/workspace/f")
    box.answers()
    assert box.remove("/workspace/f") == 1


@each(
    ("path", "error"),
    [
        ("", InvalidRequest),
        ("a\0b", InvalidRequest),
        ("x" * 5000, InvalidRequest),
        ("/".join(["x" * 200] * 30), InvalidRequest),
        ("x" * 256, InvalidRequest),
    ],
)
def test_a_malformed_path_is_an_invalid_request(path, error, shared_box):
    for work in (shared_box.read, shared_box.stat, shared_box.entries, shared_box.remove,
                 shared_box.tar_out, shared_box.mkdir):  # fmt: skip
        with pytest.raises(error):
            work(path)
    with pytest.raises(error):
        shared_box.write(path, b"")
    with pytest.raises(error):
        shared_box.call("fs.stat", path="a\0b" if "\0" in path else path)


@each("path", ["..", ".", "/", "/workspace", "/tmp/..", "/workspace/."])
def test_a_directory_is_never_written_or_removed_as_a_file(path, shared_box):
    with pytest.raises(SandkastenError):
        shared_box.write(path, b"x")
    with pytest.raises(SandkastenError):
        shared_box.remove(path)
    with pytest.raises(SandkastenError):
        shared_box.read(path)


@pytest.mark.parametrize("path", ["/", "/workspace", "/usr", "/etc", ".."])
def test_removing_the_root_removes_only_what_the_user_could_remove(path, box, neighbour):
    box.write("/workspace/mine", b"x")
    with contextlib.suppress(SandkastenError):
        box.remove(path, recursive=True, within=WITHIN)
    assert box.exec(["ls", "/bin/sh", "/etc/passwd"]).code == 0
    assert box.exec(["ls", "/workspace"]).code == 0
    assert neighbour.exec(["ls", "/bin/sh"]).code == 0


def test_blocked_paths_hold_after_links_are_resolved(box):
    box.exec(
        "cd /workspace; ln -s /etc etc; ln -s /etc/passwd p; ln -s /proc proc;"
        "ln -s /proc/self/fd/0 in;"
        "ln -s etc two; ln -s ../etc/passwd rel"
    )
    # An image of an engine's own has no link of ours to the workspace.
    by_link = () if "engine's image" in box.ground.traits else ("/work/p",)
    for path in (
        *("/etc/passwd", "etc/passwd", "p", "two/passwd", "rel", *by_link, "in"),
        *("proc/self/environ", "/proc/1/environ", "/proc/self/root/etc/passwd"),
        *("/etc/../etc/passwd", "//etc//passwd", "/etc/./passwd", "/dev/shm/../../etc/passwd"),
    ):
        with pytest.raises((PolicyDenied, NotRegular)):
            box.read(path, deny=DENY)
        with pytest.raises(PolicyDenied):
            box.write(path, b"x", deny=DENY, within=WITHIN, parents=False)
    for path in ("proc", "/proc", "etc/passwd", "/dev"):
        with pytest.raises((PolicyDenied, SandkastenError)):
            box.tar_out(path, deny=DENY)
    # The innocent twin.
    assert box.read("/etc/hostname", deny=DENY) == b"sandbox\n"
    assert box.write("ok", b"x", deny=DENY, within=WITHIN).path == "/workspace/ok"


@pytest.mark.parametrize(
    "destination", ["/dev/shm/x", "/workspace/shm/x", "/run/sandkasten/x", "/var/x", "/x"]
)
def test_writes_stay_within_the_allowed_directories(destination, box):
    box.exec("ln -s /dev/shm /workspace/shm")
    box.write("/workspace/source", b"x")
    box.write("/workspace/d/f", b"x")
    for work in (
        lambda: box.write(destination, b"x", within=WITHIN),
        lambda: box.mkdir(destination, within=WITHIN),
        lambda: box.move("/workspace/source", destination, within=WITHIN),
        lambda: box.tar_in(destination, box.tar_out("/workspace/d"), within=WITHIN),
    ):
        with pytest.raises((PolicyDenied, FileNotFound)):
            work()
    assert box.exec(["ls", "-A", "/dev/shm"]).text == ""
    assert box.read("/workspace/source") == b"x"


def test_a_sparse_terabyte_is_read_in_part_and_refused_as_a_whole(box):
    box.exec(["truncate", "-s", "1099511627776", "/workspace/sparse"])
    if box.exec(["stat", "-c", "%s", "/workspace/sparse"]).text != f"{2**40}\n":
        pytest.skip("this file system has no file so large")
    assert box.stat("/workspace/sparse").size == 2**40
    # To read up to there would take far longer than any test may.
    assert box.read("/workspace/sparse", offset=2**39, limit=10) == bytes(10)
    assert box.read("/workspace/sparse", offset=2**40 - 3, limit=10) == bytes(3)
    with pytest.raises(PayloadTooLarge):
        box.read("/workspace/sparse", max=10_000_000)
    box.answers()


def test_downloading_a_sparse_terabyte_as_an_archive_can_be_stopped(box):
    box.exec(["truncate", "-s", "1099511627776", "/workspace/sparse"])

    async def some() -> int:
        got = 0
        async with box.channel.stream("fs.tar_out", {"path": "/workspace"}) as call:
            async for item in call:
                got += len(getattr(item, "data", b""))
                if got > 20_000_000:
                    break
        return got

    assert box.loop.run(some()) > 20_000_000
    box.answers()


@pytest.mark.promise("P20")
@pytest.mark.needs_program("python3")
def test_a_tree_five_thousand_deep_is_listed_and_removed(box):
    depth = sized(1500, 5000)
    code = f"""
import os
os.makedirs("/tmp/deep"); os.chdir("/tmp/deep")
for n in range({depth}):
    os.mkdir("d"); os.chdir("d")
"""
    assert box.exec([PYTHON, "-I", "-c", code]).code == 0
    found = box.entries("/tmp/deep", recursive=True, limit=5000)
    assert len(found) == depth
    assert box.remove("/tmp/deep", recursive=True) == depth + 1
    box.answers()


@pytest.mark.promise("P20")
@pytest.mark.needs_program("python3")
def test_very_many_entries_are_paged(box):
    count = 3500  # the workspace has 4,096 inodes
    code = f"""
import os
os.mkdir("/workspace/many")
for n in range({count}):
    os.symlink("x", f"/workspace/many/{{n:07d}}")
"""
    assert box.exec([PYTHON, "-I", "-c", code], timeout_s=60).code == 0
    names = [e.name for e in box.entries("/workspace/many", limit=700)]
    assert names == [f"{n:07d}" for n in range(count)]


@pytest.mark.needs_program("python3")
@pytest.mark.timeout(600)
def test_a_directory_of_very_many_entries_in_memory_is_paged_and_removed(make_box, neighbour):
    """More than the workspace's inodes: in /tmp, where only memory bounds them."""
    from sandkasten.model.sandbox.limits import MIB, Limits

    count = sized(20_000, 1_000_000)
    limits = Limits(memory_bytes=2048 * MIB, tmp_bytes=1024 * MIB, workspace_bytes=16 * MIB)
    code = f"""
import os
os.mkdir("/tmp/many")
for n in range({count}):
    os.close(os.open(f"/tmp/many/{{n:07d}}", os.O_CREAT | os.O_WRONLY))
"""
    with make_box(limits) as box:
        assert box.exec([PYTHON, "-I", "-c", code], timeout_s=200).code == 0
        listed = box.entries("/tmp/many", limit=5000)
        assert len({e.name for e in listed}) == len(listed) == count
        removing = box.loop.background(
            box.channel.call("fs.remove", {"path": "/tmp/many", "recursive": True})
        )
        # One long removal does not keep other requests waiting.
        box.answers()
        # A small one may be over by now.
        assert not LONG or not removing.done()
        assert removing.result(200)["removed"] == count + 1
    neighbour.answers()


ODD_NAMES = [
    b"new\nline", b"-rf", b"--", b"\xe2\x80\xaeRTL", b"\xff\xfe\xfd",
    b"<script>alert(1)<script>", b"a b\tc",
    b"'\"`$(id)`", b"\\", b"*?[x]", b"\x1b]0;title\x07", b"CON", b"x" * 255,
    "naïve—ü".encode(), b"\x01\x7f",
    b" lead and trail ", b"...", b"%2e%2e", b"{\"b64\":\"AA==\"}",
]  # fmt: skip


@pytest.mark.promise("P20")
@each("name", ODD_NAMES)
def test_an_unusual_file_name_makes_an_exact_round_trip(name, box):
    path = b"/workspace/" + name
    entry = box.write(path, b"content of " + name)
    assert os.fsencode(entry.name) == name
    assert os.fsencode(entry.path) == path
    assert [os.fsencode(e.name) for e in box.entries("/workspace") if e.type == "file"] == [name]
    assert box.read(path) == b"content of " + name
    assert os.fsencode(box.stat(path).path) == path
    moved = b"/workspace/other" + name[:200]
    assert os.fsencode(box.move(path, moved).path) == moved
    assert box.move(moved, path).size == len(b"content of " + name)
    packed = box.tar_out("/workspace")
    assert box.remove(path) == 1
    box.tar_in("/workspace", packed)
    assert box.read(path) == b"content of " + name
    assert box.remove(path) == 1


@pytest.mark.promise("P19")
@pytest.mark.needs_program("python3")
def test_a_reader_sees_the_old_file_or_the_new_one_and_never_a_part(box):
    size = 300_000
    box.write("/workspace/f", b"0" * size)
    code = f"""
import sys
seen = set()
while True:
    data = open("/workspace/f", "rb").read()
    assert len(data) == {size} and len(set(data)) == 1, (len(data), set(data))
    seen.add(data[0])
    if data[0] == ord("z"): break
print(len(seen))
"""
    reader = box.begin([PYTHON, "-I", "-c", code], timeout_s=90)
    for n in range(60):
        box.write("/workspace/f", bytes([48 + n % 10]) * size)
    box.write("/workspace/f", b"z" * size)
    answer = reader.result(100)
    assert answer.code == 0, answer.stderr


def test_an_aborted_write_leaves_only_the_old_file(box):
    box.write("/workspace/f", b"old")

    async def half(*, end_channel: bool) -> None:
        from sandkasten_runtime.wire.channel import Channel

        channel = await Channel.open(await box.cell.dial())
        async with channel.stream("fs.write", {"path": "/workspace/f"}) as call:
            await call.send(b"n" * 3_000_000)
            if end_channel:
                await channel.aclose()
        await channel.aclose()

    def others() -> set[str]:
        return {e.name for e in box.entries("/workspace")} - {"f", "lost+found"}

    for end_channel in (False, True):
        box.loop.run(half(end_channel=end_channel))
        assert box.read("/workspace/f") == b"old"
        poll("another file", others)


def test_a_growing_file_is_read_to_the_size_first_seen(box):
    box.exec(
        "(while :; do head -c 100000 /dev/zero; done >>/tmp/growing &);"
        "while ! [ -s /tmp/growing ]; do sleep 0.02; done"
    )
    data = box.read("/tmp/growing")
    size = box.stat("/tmp/growing").size
    assert len(data) <= size
    box.exec("pkill head; pkill bash; true")


def test_a_shrinking_file_does_not_hang_a_reader(box):
    box.write("/workspace/f", bytes(8_000_000))
    flip = box.begin(
        [
            "sh",
            "-c",
            "cd /workspace; while ! [ -e /tmp/stop ]; do"
            " truncate -s 0 f; truncate -s 8000000 f; done",
        ],
        timeout_s=100,
    )
    for _ in range(20):
        with contextlib.suppress(FileTrouble):
            assert len(box.read("/workspace/f")) <= 8_000_000
        assert box.tar_out("/workspace")
    box.write("/tmp/stop", b"")
    assert flip.result(FAR_TOO_LATE_S).code == 0


def test_trees_without_permissions_can_be_removed(box):
    box.exec("cd /workspace; mkdir -p a/b/c; echo x >a/b/c/f; chmod 000 a/b/c a/b a")
    assert box.remove("/workspace/a", recursive=True) == 4


def test_modes_of_written_files_carry_no_set_id(box):
    for mode in (0o4755, 0o2755, 0o6777):
        entry = box.write("/workspace/tool", b"#!/bin/sh\n", mode=mode)
        assert entry.mode & 0o7000 == 0 or box.exec(["/workspace/tool"]).code == 0
    assert box.exec(["sh", "-c", "id -u"]).text == f"{box.uid}\n"


def test_a_watch_during_many_changes_is_bounded(box):
    """Unread events must not fill memory, and many of them are still reported."""

    async def storm() -> int:
        seen = 0
        count = paced(20_000, box.ground)
        script = f"for i in $(seq {count}); do : >/tmp/$((i % 50)); done"
        async with box.channel.stream("fs.watch", {"path": "/tmp"}) as call:
            storm = box.loop.background(box.aexec(["sh", "-c", script]))
            assert (await asyncio.wrap_future(storm)).code == 0
            # How many there are is the kernel's choice: equal ones may be told as one.
            async with asyncio.timeout(PATIENCE_S):
                async for _ in call:
                    seen += 1
                    if seen > 20:
                        break
        return seen

    assert box.loop.run(storm()) > 20
    box.answers()


def _swap_loop() -> str:
    """Exchange two names as fast as possible until stopped."""
    return """
import ctypes, os, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
number = 316 if platform.machine() == "x86_64" else 276
one, two = sys.argv[1].encode(), sys.argv[2].encode()
exchange = lambda: libc.syscall(number, -100, one, -100, two, 2)
def by_hand():
    os.rename(one, one + b".other"); os.rename(two, one); os.rename(one + b".other", two)
# Not every kernel exchanges two names at once.
swap = by_hand if exchange() == -1 else exchange
print("up", flush=True)
count = 0
while not os.path.exists("/tmp/stop"):
    for _ in range(100):
        swap()
        count += 1
    if count % 1000 == 0: print(count, flush=True)
print(count, flush=True)
"""


@pytest.fixture
def swapped(box: Box) -> Box:
    """`/workspace/a` alternates between a directory and a link out of the allowed directories."""
    box.exec(
        "mkdir -p /workspace/a/sub /dev/shm/outside/sub; cd /workspace/a;"
        "echo INSIDE >f; echo INSIDE >sub/f;"
        "cd /dev/shm/outside; echo OUTSIDE >f; echo OUTSIDE >sub/f"
    )
    box.exec("ln -s /dev/shm/outside /workspace/b")
    exec_id = box.start(
        [PYTHON, "-I", "-c", _swap_loop(), "/workspace/a", "/workspace/b"], timeout_s=100
    )
    poll("no swapping", lambda: not box.kept(exec_id).stdout.startswith(b"up\n"))
    box.swapper = exec_id  # type: ignore[attr-defined]
    return box


def _swaps(box: Box) -> int:
    *_, last = box.kept(box.swapper).stdout.split()  # type: ignore[attr-defined]
    return 0 if last == b"up" else int(last)


def _stop(box: Box) -> None:
    box.write("/tmp/stop", b"")
    exec_id: str = box.swapper  # type: ignore[attr-defined]
    assert box.wait(exec_id).exit_code == 0


@pytest.mark.needs_program("python3")
def test_the_path_swap_escapes_when_no_rule_forbids_it(swapped):
    """The control of the cases below: the race is real and is lost without the rules."""
    seen: set[bytes] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(seen) < 2 and time.monotonic() < deadline:
        try:
            seen.add(swapped.read("/workspace/a/f"))
        except SandkastenError:
            continue
    _stop(swapped)
    assert seen == {b"INSIDE\n", b"OUTSIDE\n"}


NO_EXCHANGE = "gVisor cannot exchange two names; between two renames a writer makes the name anew"
RULES = {"deny": ["/dev"], "within": ["/workspace"]}
VERBS = [
    "read",
    "write",
    "stat",
    "list",
    "tar_out",
    "tar_in",
    "mkdir",
    "move in",
    "move out",
    "remove",
    "remove tree",
]


@pytest.mark.needs_program("python3")
@pytest.mark.parametrize(
    "verb",
    [
        pytest.param(
            verb,
            marks=pytest.mark.not_on("gvisor", reason=NO_EXCHANGE)
            if verb in ("write", "tar_in", "mkdir", "remove tree")
            else (),
        )
        for verb in VERBS[:: 1 if LONG else 3]
    ],
)
def test_a_constantly_swapped_path_never_leads_outside(verb, swapped):
    """The rules name what is outside; an ordinary path walk would follow the link."""
    box = swapped
    swaps = paced(sized(5_000, 15_000), box.ground)
    member = box.tar_out("/etc/hostname")
    outcomes = {"done": 0, "refused": 0}
    began = time.monotonic()
    n = 0

    def enough() -> bool:
        so_far = time.monotonic() - began
        if so_far < sized(1, 60) / 2:
            return False
        many = sum(outcomes.values()) >= 20 and outcomes["refused"] > 0 and _swaps(box) >= swaps
        return many or so_far > FAR_TOO_LATE_S

    while not enough():
        n += 1
        try:
            match verb:
                case "read":
                    assert box.read("/workspace/a/f", **RULES) == b"INSIDE\n"
                case "write":
                    box.write("/workspace/a/w", b"x", **RULES)
                case "stat":
                    assert box.stat("/workspace/a/f", **RULES).path.startswith("/workspace/")
                case "list":
                    for entry in box.entries("/workspace/a", recursive=True, **RULES):
                        assert entry.path.startswith("/workspace/")
                case "tar_out":
                    assert b"OUTSIDE" not in box.tar_out("/workspace/a", **RULES)
                case "tar_in":
                    box.tar_in("/workspace/a", member, **RULES)
                case "mkdir":
                    box.mkdir(f"/workspace/a/m{n}/x", **RULES)
                case "move in":
                    box.write("/workspace/loose", b"x")
                    box.move("/workspace/loose", "/workspace/a/moved", overwrite=True, **RULES)
                case "move out":
                    box.write("/dev/shm/outside/taken", b"OUTSIDE")
                    box.move("/workspace/a/taken", "/workspace/taken", overwrite=True, **RULES)
                case "remove":
                    box.write("/dev/shm/outside/victim", b"OUTSIDE")
                    box.remove("/workspace/a/victim", **RULES)
                case "remove tree":
                    box.remove("/workspace/a/sub", recursive=True, **RULES)
                    box.exec(["mkdir", "-p", "/workspace/a/sub"])
            outcomes["done"] += 1
        except SandkastenError:
            outcomes["refused"] += 1
    _stop(box)
    assert _swaps(box) >= swaps
    assert sum(outcomes.values()) >= 20
    assert outcomes["refused"] > 0
    outside = box.exec("cd /dev/shm/outside; find . | sort; cat f sub/f").text.split()
    extra = {"move out": ["./taken"], "remove": ["./victim"]}.get(verb, [])
    if verb in ("move out", "remove"):
        assert box.exec(["ls", "/workspace/taken"]).code != 0
    assert outside == sorted([".", "./f", "./sub", "./sub/f", *extra]) + ["OUTSIDE", "OUTSIDE"]


# Each sandbox has inodes of its own for all that it shares with others. An ordinary user cannot
# make device nodes, gVisor has no locks on its own ones, and the sandboxes of a Docker Engine share
# the volume with the runner.
DIRECTORIES = ("/usr/bin", "/etc", "/dev") if ROOT else ("/usr/bin", "/etc")
FILES = ("/usr/bin/env", "/etc/ld.so.cache", *(("/dev/null", "/dev/tty") if ROOT else ()))
RUNNER = "/run/sandkasten/runner"
WATCHED = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
events = libc.inotify_init1(os.O_NONBLOCK)
for path in sys.argv[1:]:
    assert libc.inotify_add_watch(events, path.encode(), 0x21) > 0, path  # opened or read
print("ready", flush=True)
while not os.path.exists("stop"):
    time.sleep(0.01)
try:
    print(os.read(events, 65536))
except BlockingIOError:
    print("nothing")
"""
LOCKED = """
import fcntl, sys, time
held = [open(path) for path in sys.argv[1:]]
for one in held:
    fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(one, fcntl.LOCK_SH | fcntl.LOCK_NB)
print("ready", flush=True)
time.sleep(600)
"""
# A lock for reading is found by asking whether one for writing were possible.
PROBED = """
import fcntl, struct, sys
for path in sys.argv[1:]:
    with open(path) as one:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
        found = struct.unpack("hhqqi4x", fcntl.fcntl(one, fcntl.F_GETLK, asked))
        assert found[0] == fcntl.F_UNLCK, path
"""


def _shared_files(box: Box) -> tuple[str, ...]:
    return FILES if box.container else (*FILES, RUNNER)


def _ready(box: Box) -> bool:
    return box.read("/workspace/seen").startswith(b"ready\n")


@pytest.mark.aspect("neighbour")
@pytest.mark.needs_program("python3")
def test_a_sandbox_does_not_see_what_its_neighbours_and_the_host_open(box, neighbour):
    paths = " ".join((*DIRECTORIES, *_shared_files(box)))
    box.write("/workspace/seen", b"")
    box.write("/workspace/watch.py", WATCHED.encode())
    box.exec(f"cd /workspace; {PYTHON} watch.py {paths} >seen 2>&1 &")
    poll("starting to watch", lambda: not _ready(box))
    assert neighbour.exec(["cksum", "/etc/hostname"]).code == 0
    subprocess.run(
        ["cksum", "/etc/hostname"], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    assert neighbour.exec("head -c 1 /usr/bin/env >/dev/null").code == 0
    box.write("/workspace/stop", b"")
    poll("watching", lambda: len(box.read("/workspace/seen").splitlines()) < 2)
    # Its own shell opened nothing meanwhile.
    assert box.read("/workspace/seen") == b"ready\nnothing\n"


@pytest.mark.aspect("neighbour")
@pytest.mark.needs_program("python3")
def test_a_lock_is_not_seen_by_a_neighbour(box, neighbour):
    left_out = "/dev/" if box.gvisor else "/dev/tty"
    paths = [path for path in _shared_files(box) if not path.startswith(left_out)]
    box.write("/workspace/seen", b"")
    box.write("/workspace/lock.py", LOCKED.encode())
    box.exec(f"cd /workspace; {PYTHON} lock.py {' '.join(paths)} > seen 2>&1 &")
    poll("starting to lock", lambda: not _ready(box))
    # Within one sandbox a lock is a lock.
    refused = box.exec([PYTHON, "-c", LOCKED, *paths])
    assert (refused.code, b"BlockingIOError" in refused.stderr) == (1, True)
    asked = neighbour.exec([PYTHON, "-c", PROBED, *paths])
    assert (asked.code, asked.stderr) == (0, b"")
    subprocess.run([PYTHON, "-c", PROBED, FILES[0]], check=True)
