"""The program that fetches packages, when its request ends early."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import pytest

from sandkasten_build.packages import package_fetch
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_fetcher_that_ignores_the_first_signal_is_killed_with_its_request(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(package_fetch, "_GRACE_S", 0.1)
    deaf = "trap '' TERM; echo $$ > pid; while :; do sleep 1; done"
    fetching = package_fetch.fetch(
        ["/bin/sh", "-c", deaf],
        env={},
        into=tmp_path,
        max_bytes=1 << 20,
        timeout_s=60,
        what="packages",
    )
    task = asyncio.create_task(fetching)
    pid = await asyncio.to_thread(_pid, tmp_path / "pid")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await asyncio.to_thread(os.path.exists, f"/proc/{pid}")


def _pid(path: Path) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return path.read_text().strip()
