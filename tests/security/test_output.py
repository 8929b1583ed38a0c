"""Output floods: counted exactly, kept within the cap, never in our memory."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.security.harness import NAMED, PYTHON, Box, paced, sized
from tests.shared_sandbox_cases import few

pytestmark = pytest.mark.promise("P14")

GIB = 1024**3
MIB = 1024**2


def _rss(pid: str | int = "self") -> int:
    status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    found = re.search(r"^VmRSS:\s+(\d+)", status, re.MULTILINE)
    assert found is not None
    return int(found.group(1)) * 1024


def _rss_of_runner(box: Box) -> int:
    if box.gvisor:
        return next(p.rss_bytes for p in box.processes() if p.pid == 1)
    return _rss(box.host_pid)


@pytest.mark.own_cell(NAMED)
@pytest.mark.slow_loop
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("way", "size"), few([("shell", 128 * MIB), ("argv", GIB), ("shell", GIB)])
)
def test_a_flood_of_output_is_counted_and_memory_stays_flat(way, size, box):
    box.exec(["true"])
    box.exec("true")
    ours, runners = _rss(), _rss_of_runner(box)
    command = f"head -c {size} /dev/zero"
    answer = box.exec(
        command if way == "shell" else command.split(), exec_id="flood", cap=200_000, timeout_s=500
    )
    assert answer.code == 0
    assert answer.reply.stdout_bytes == size
    assert answer.reply.truncated
    kept = box.kept("flood")
    assert len(kept.stdout) == 200_000
    # The test itself keeps up to 16 MiB of what was streamed to it.
    assert _rss() - ours < 64 * MIB
    assert _rss_of_runner(box) - runners < 16 * MIB


@pytest.mark.own_cell(NAMED)
@pytest.mark.needs_program("python3")
def test_head_and_tail_are_kept_byte_for_byte(box):
    code = "import sys; sys.stdout.buffer.write(b''.join(b'%07d\\n' % n for n in range(200000)))"
    whole = b"".join(b"%07d\n" % n for n in range(200_000))
    answer = box.exec([PYTHON, "-I", "-c", code], exec_id="long", cap=1001)
    assert answer.reply.stdout_bytes == len(whole)
    assert box.kept("long").stdout == whole[:501] + whole[-500:]


@pytest.mark.own_cell(NAMED)
@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 1002, 65536, 65537])
def test_the_output_cap_is_exact_to_the_byte(size, box):
    answer = box.exec(["head", "-c", str(size), "/dev/zero"], exec_id="edge", cap=1000)
    assert answer.reply.stdout_bytes == size
    assert answer.reply.truncated == (size > 1000)
    assert len(box.kept("edge").stdout) == min(size, 1000)


def test_flooding_both_streams_at_once_keeps_both(box):
    size = 64 * MIB
    script = f"head -c {size} /dev/zero & head -c {size} /dev/zero >&2; wait"
    answer = box.exec(["sh", "-c", script], timeout_s=60, cap=1000)
    assert (answer.reply.stdout_bytes, answer.reply.stderr_bytes) == (size, size)


@pytest.mark.needs_program("python3")
def test_output_of_one_byte_at_a_time_is_kept(box):
    code = "import os\nfor n in range(30000): os.write(1, b'x')"
    answer = box.exec([PYTHON, "-I", "-c", code], timeout_s=60)
    assert answer.reply.stdout_bytes == 30_000
    assert answer.stdout == b"x" * 30_000


def test_a_flood_without_a_reader_does_not_stop_other_commands(box):
    exec_id = box.start(["yes"], timeout_s=110)
    for _ in range(20):
        assert box.exec(["echo", "x"]).stdout == b"x\n"
    runner = _rss_of_runner(box)
    box.call("exec.signal", exec_id=exec_id, signal=9)
    assert runner < 32 * MIB
    reply = box.wait(exec_id)
    assert (reply.signal, reply.timed_out) == (9, False)


def test_many_floods_at_once_stay_within_the_runners_memory(box):
    ids = [box.start(["yes", "x" * 500], timeout_s=110, cap=1_000_000) for _ in range(8)]
    time.sleep(1.5)
    assert _rss_of_runner(box) < 64 * MIB
    for exec_id in ids:
        box.call("exec.signal", exec_id=exec_id, signal=9)
    for exec_id in ids:
        assert box.wait(exec_id).ended


@pytest.mark.timeout(600)
def test_a_thousand_finished_commands_do_not_fill_the_runners_memory(box):
    for n in range(paced(sized(400, 3000), box.ground)):
        box.exec(["head", "-c", "100000", "/dev/zero"], exec_id=f"many{n}")
    assert _rss_of_runner(box) < 32 * MIB


@pytest.mark.own_cell(NAMED)
def test_a_reader_that_stops_reading_does_not_stop_the_command(box):
    """Follows the output without reading it; the command still ends."""

    async def stalled() -> None:
        fields = box.fields(["head", "-c", str(64 * MIB), "/dev/zero"], exec_id="stalled")
        async with box.channel.stream("exec.start", fields) as call:
            async for _ in call:
                break
            got = await box.channel.call("exec.wait", {"exec_id": "stalled", "timeout_ms": 60000})
            assert got["exit_code"] == 0
            assert got["stdout_bytes"] == 64 * MIB

    box.loop.run(stalled())


def test_invalid_utf8_is_kept_as_bytes(box):
    answer = box.exec(["printf", r"\377\376a\300\200"])
    assert answer.stdout == b"\xff\xfea\xc0\x80"
