"""Load over HTTP: no unexpected error, and the daemon returns to its initial size."""

from __future__ import annotations

import asyncio
import os
import sys

import aiohttp
import pytest

from tests.daemon.load import Level, Load, down_to
from tests.daemon.process import ask, running
from tests.patience import FAR_TOO_LATE_S

pytestmark = pytest.mark.promise("P40")

LONG = os.environ.get("TEST_SANDKASTEN_LONG") == "1"
CLIENTS, SESSIONS, SECONDS = (200, 50, 60.0) if LONG else (60, 12, 3.0)
# What Python's allocator and caches keep after the first load; a second load may add nothing.
_KEPT_MIB = 24.0


@pytest.mark.timeout(600)
@pytest.mark.long(reason="`make test` has the same clients while the daemon is killed")
async def test_many_concurrent_clients_get_correct_answers(tmp_path, capsys):
    timeout = aiohttp.ClientTimeout(total=2 * FAR_TOO_LATE_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        running(tmp_path / "data") as daemon,
        aiohttp.ClientSession(timeout=timeout, connector=connector) as http,
    ):
        load = Load(daemon.url, http)
        sessions = await load.sessions(SESSIONS)
        await load.run(sessions, CLIENTS, SECONDS / 3)
        before = await _settled(daemon.pid, http)
        await load.run(sessions, CLIENTS, SECONDS)
        peak = Level.of(daemon.pid)
        await _settled(daemon.pid, http)
        after = await down_to(daemon.pid, before.descriptors)
        with capsys.disabled():
            sys.stdout.write(f"\n{load.figures}\nbefore {before}\npeak {peak}\nafter {after}\n")
        assert load.figures.unexpected == []
        for session in sessions:
            assert (await ask(http, "DELETE", f"{daemon.url}/v1/sessions/{session}"))[0] == 200
    assert after.descriptors <= before.descriptors
    assert after.rss_mib <= before.rss_mib + _KEPT_MIB


async def _settled(pid: int, http: aiohttp.ClientSession) -> Level:
    """Wait until no connection of ours is left and the daemon has noticed."""
    await asyncio.sleep(0)
    assert http.connector is not None
    for _ in range(100):
        found = Level.of(pid)
        http.connector._cleanup()  # closes what idles
        await asyncio.sleep(0.1)
        if Level.of(pid) == found:
            return found
    return found
