"""Repeated one-shots on real sandboxes: fast, isolated, and nothing left afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.conftest import POOL_SIZE, REPOSITORY, leftovers, sandkasten
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.promise("P17")

_HEAD = """
import contextlib, json, os, sys, time
from pathlib import Path
from sandkasten import run
from dataclasses import replace
from sandkasten_runtime.assembly import engine_assembly
# A busy machine may need minutes for what takes a second.
IDLE_S = 90
engine_assembly.embedded_pool = lambda rules: replace(rules, idle_s=IDLE_S, max_per_kind=1)
ROWS = Path(os.environ["SANDKASTEN_DATA_DIR"]) / "ledger" / "rows"

def rows(acquired):
    found = []
    for path in [*ROWS.glob("*.json"), *ROWS.glob("*.spare")]:
        with contextlib.suppress(FileNotFoundError):  # Removed meanwhile.
            found.append(json.loads(path.read_text()))
    return [row["id"] for row in found if row["acquired"] == acquired and row["state"] == "running"]

def spare():
    deadline = time.monotonic() + 40
    while not rows("spare"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.05)
    (one,) = rows("spare")
    return one
"""


@pytest.fixture(autouse=True)
def warm_pool(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(POOL_SIZE)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}


def _program(source: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _HEAD + source],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=_environment(),
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.fixture
def lease_s(request: pytest.FixtureRequest) -> float:
    """Lease of the warm sandbox: long enough for a busy machine, or as the test says."""
    return float(getattr(request, "param", 90))


@pytest.fixture
def idle_program(data_dir: Path, lease_s: float) -> Iterator[subprocess.Popen[str]]:
    """A program that has created a warm sandbox, printed its id, and then sleeps."""
    source = (
        "from sandkasten_runtime.engine.pool import warm_pool\n"
        f"warm_pool.LEASE_MARGIN_S = {lease_s} - 1.5 * IDLE_S\n"
        'run("1"); run("1"); print(spare(), flush=True); time.sleep(600)'
    )
    with subprocess.Popen(
        [sys.executable, "-c", _HEAD + source],
        stdout=subprocess.PIPE,
        text=True,
        env=_environment(),
    ) as one:
        yield one
        one.kill()


def _id(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


def test_later_one_shots_claim_a_prepared_sandbox_and_each_is_used_once(data_dir: Path):
    code = """
import os
seen = [p for p in ("/workspace/a", "/tmp/b", os.path.expanduser("~/c")) if os.path.exists(p)]
for p in ("/workspace/a", "/tmp/b", os.path.expanduser("~/c")):
    open(p, "w").write("x")
print(seen, sorted(os.listdir("/workspace")))
"""
    answer = _program(f"""
ids, said, claimed = [], set(), 0
for number in range(6):
    ready = spare() if number >= 2 else None
    result = run({code!r})
    claimed += result.sandbox_id == ready
    ids.append(result.sandbox_id)
    said.add(result.stdout)
print(json.dumps([len(set(ids)), claimed, sorted(said)]))
""")
    assert answer == [6, 4, ["[] ['a', 'main.py']\n"]]
    assert leftovers(data_dir) == []
    assert sandkasten("ls", "--all", "--json").document == []


@pytest.mark.promise("P94")
def test_limits_of_a_one_shot_hold_in_a_warm_sandbox(data_dir: Path):
    answer = _program("""
run("1"); run("1")
first = spare()
small = run("x = b'x' * (200 << 20)", limits={"mem_limit_mb": 64})
second = spare()
large = run("x = b'x' * (700 << 20)", limits={"mem_limit_mb": 1024})
third = spare()
own = run("1", limits={"workspace_mb": 64})
print(json.dumps([[first, second], [small.sandbox_id, large.sandbox_id],
                  [small.oom_killed, large.ok], own.sandbox_id == third]))
""")
    warm, used, said, shared = answer
    assert (used, said, shared) == (warm, [True, True], False)
    assert leftovers(data_dir) == []


@pytest.mark.long(reason="`make test` runs fifty at once on warm sandboxes")
def test_fifty_concurrent_one_shots_have_fifty_sandboxes(data_dir: Path):
    answer = _program("""
from concurrent.futures import ThreadPoolExecutor
run("1"); run("1"); spare()
with ThreadPoolExecutor(50) as pool:
    results = list(pool.map(lambda n: run(f"open('x', 'x').write('{n}'); print(open('x').read())"),
                            range(50)))
print(json.dumps([len({r.sandbox_id for r in results}),
                  [r.stdout for r in results] == [f"{n}\\n" for n in range(50)]]))
""")
    assert answer == [50, True]
    assert leftovers(data_dir) == []


def test_event_loops_that_end_leave_no_prepared_sandbox(data_dir: Path):
    answer = _program("""
import asyncio, threading
from sandkasten import run_async
async def some():
    for _ in range(3):
        await run_async("1")
for _ in range(2):
    asyncio.run(some())
after = [rows("spare")]
threads = [threading.Thread(target=asyncio.run, args=(some(),)) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([*after, rows("spare")]))
""")
    assert answer == [[], []]
    assert leftovers(data_dir) == []


def test_a_forked_process_neither_uses_nor_removes_the_warm_sandbox_of_its_parent(data_dir: Path):
    answer = _program("""
run("1"); run("1")
one = spare()
child = os.fork()
if child == 0:
    mine = [run("1").sandbox_id for _ in range(2)]
    from sandkasten.client.blocking import loop_thread
    loop_thread._close_at_exit()
    os._exit(1 if one in mine else 0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps([status, run("print(6)").sandbox_id == one]))
""")
    assert answer == [0, True]
    assert leftovers(data_dir) == []


def test_a_warm_sandbox_is_not_listed_and_rm_all_removes_it(idle_program: subprocess.Popen[str]):
    spare = _id(idle_program)
    assert sandkasten("ls", "--json").document == []
    assert spare not in sandkasten("ls").out
    (shown,) = sandkasten("ls", "--all", "--json").document
    assert (shown["id"], shown["acquire_source"]) == (spare, "pool")
    refused = sandkasten("exec", spare, "echo > /tmp/left", "--json")
    assert refused.status != 0
    assert sandkasten("rm", "--all", "--json").document == {"removed": [spare], "failed": []}
    assert sandkasten("ls", "--all", "--json").document == []


def test_after_kill_9_the_next_command_removes_the_warm_sandbox(
    idle_program: subprocess.Popen[str], data_dir: Path
):
    spare = _id(idle_program)
    idle_program.send_signal(signal.SIGKILL)
    idle_program.wait(PATIENCE_S)
    assert (data_dir / "cells" / spare).exists()
    assert sandkasten("ls", "--json").document == []
    assert leftovers(data_dir) == []
    assert list((data_dir / "ledger" / "rows").iterdir()) == []


@pytest.mark.parametrize("lease_s", [3.0], indirect=True)
def test_after_kill_9_the_warm_sandbox_ends_itself(
    idle_program: subprocess.Popen[str], data_dir: Path
):
    spare = _id(idle_program)
    idle_program.send_signal(signal.SIGKILL)
    idle_program.wait(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while any(one.startswith("process") for one in leftovers(data_dir)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert (data_dir / "cells" / spare).exists()
    assert sandkasten("ls", "--json").document == []
    assert leftovers(data_dir) == []


def test_a_warm_sandbox_that_was_killed_is_replaced(data_dir: Path):
    answer = _program("""
import signal
run("1"); run("1")
one = spare()
cell = Path(os.environ["SANDKASTEN_DATA_DIR"]) / "cells" / one
os.kill(int((cell / "pid").read_text().split()[0]), signal.SIGKILL)
first = run("print(1)")
second = spare()
again = run("print(2)")
said = first.stdout + again.stdout
print(json.dumps([said, first.sandbox_id == one, again.sandbox_id == second]))
""")
    assert answer == ["1\n2\n", False, True]
    assert leftovers(data_dir) == []


def test_without_the_setting_no_warm_sandbox_is_kept(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(POOL_SIZE, "0")
    answer = _program("""
for _ in range(4):
    run("1")
time.sleep(0.3)
print(json.dumps(rows("spare")))
""")
    assert answer == []
