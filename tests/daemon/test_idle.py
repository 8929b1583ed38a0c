"""Many idle sessions: what they cost the daemon, and that it does not grow."""

from __future__ import annotations

import asyncio
import os
import sys

import aiohttp
import pytest

from tests.daemon.load import Level, Load, down_to
from tests.daemon.process import ask, running

LONG = os.environ.get("TEST_SANDKASTEN_LONG") == "1"
SESSIONS, SECONDS = (200, 60) if LONG else (40, 6)
# One look at every session by the watch and the sweep, and what Python keeps of it.
_GROWTH_MIB = 4.0
# Asyncio's pool of threads, which grows to its size as soon as so many things are slow at once.
_POOL = min(32, (os.cpu_count() or 1) + 4)


@pytest.mark.long(reason="it waits for idle time")
@pytest.mark.timeout(300)
async def test_idle_sessions_cost_little_and_the_daemon_does_not_grow(tmp_path, capsys):
    async with running(tmp_path / "data") as daemon, aiohttp.ClientSession() as http:
        start = Level.of(daemon.pid)
        sessions = await Load(daemon.url, http).sessions(SESSIONS)
        full = Level.of(daemon.pid)
        await asyncio.sleep(SECONDS)
        after = await down_to(daemon.pid, full.descriptors)
        each_kib = (full.rss_mib - start.rss_mib) * 1024 / SESSIONS
        with capsys.disabled():
            sys.stdout.write(
                f"\n{SESSIONS} idle sessions: the daemon holds {full.rss_mib:.1f} MiB, "
                f"{each_kib:.0f} KiB for each; {after.rss_mib - full.rss_mib:+.2f} MiB "
                f"after {SECONDS} s\n"
            )
        for session in sessions:
            assert (await ask(http, "DELETE", f"{daemon.url}/v1/sessions/{session}"))[0] == 200
        # Descriptors of a sandbox that ended are closed behind its answer.
        empty = await down_to(daemon.pid, start.descriptors + 2)
    assert after.rss_mib <= full.rss_mib + _GROWTH_MIB
    assert after.descriptors <= full.descriptors
    assert after.threads <= full.threads + _POOL
    assert empty.descriptors <= start.descriptors + 2
