"""Locks across processes: one holder at a time, none left by a killed process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import Busy
from sandkasten_runtime.store.ledger_directory import DirectoryStore

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

HOLDER = """
import asyncio, sys
from pathlib import Path
from sandkasten_runtime.store.ledger_directory import DirectoryStore

async def main():
    async with DirectoryStore(Path(sys.argv[1])).lock("x"):
        print("held", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""

COUNTER = """
import asyncio, sys
from pathlib import Path
from sandkasten_runtime.store.ledger_directory import DirectoryStore

async def main():
    root = Path(sys.argv[1])
    store, count = DirectoryStore(root), root / "count"
    for _ in range(40):
        async with store.lock("x"):
            before = int(count.read_text())
            await asyncio.sleep(0)
            count.write_text(str(before + 1))

asyncio.run(main())
"""


FORKER = """
import asyncio, os, signal, sys
from pathlib import Path
from sandkasten.errors import Busy
from sandkasten_runtime.store.ledger_directory import DirectoryStore

async def main():
    store = DirectoryStore(Path(sys.argv[1]))
    async with store.lock("x"):
        child = os.fork()
        if not child:
            signal.pause()
    try:
        async with store.lock("x", wait_s=0):
            print("released")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

asyncio.run(main())
"""


async def _python(code: str, root: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(root), stdout=asyncio.subprocess.PIPE
    )


async def test_the_lock_of_a_killed_process_is_released(tmp_path):
    store = DirectoryStore(tmp_path)
    holder = await _python(HOLDER, tmp_path)
    try:
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"held\n"
        with pytest.raises(Busy):
            async with store.lock("x", wait_s=0.05):
                pass
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        await holder.communicate()
    async with store.lock("x", wait_s=5):
        pass


async def test_a_released_lock_does_not_stay_with_a_forked_child(tmp_path):
    forker = await _python(FORKER, tmp_path)
    told, _ = await forker.communicate()
    assert told == b"released\n"


async def test_processes_do_not_overwrite_each_others_updates(tmp_path):
    DirectoryStore(tmp_path)
    (tmp_path / "count").write_text("0")
    crowd = [await _python(COUNTER, tmp_path) for _ in range(4)]
    await asyncio.gather(*(one.communicate() for one in crowd))
    assert [one.returncode for one in crowd] == [0, 0, 0, 0]
    assert (tmp_path / "count").read_text() == "160"


async def test_a_name_excludes_itself_and_no_other_name(tmp_path):
    one, other = DirectoryStore(tmp_path), DirectoryStore(tmp_path)
    async with one.lock("x"), other.lock("y"):
        for name, store in (("x", other), ("y", one)):
            with pytest.raises(Busy):
                async with store.lock(name, wait_s=0):
                    pass
    async with other.lock("x", wait_s=0), one.lock("y", wait_s=0):
        pass


async def test_every_name_locks_a_byte_of_the_same_empty_file(tmp_path):
    store = DirectoryStore(tmp_path / "ledger")
    for name in ("../../x", "/etc/passwd", "a\0b", "k" * 10_000, "\ud800"):
        async with store.lock(name):
            (only,) = (tmp_path / "ledger" / "locks").iterdir()
            assert only.stat().st_size == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ledger"]
