"""Repeated `kill -9` of the daemon under load: nothing acknowledged is lost."""

from __future__ import annotations

import os
import sqlite3
import sys

import aiohttp
import pytest

from tests.daemon.process import running
from tests.daemon.storm import Storm, eventually

pytestmark = pytest.mark.promise("P33")

LONG = os.environ.get("TEST_SANDKASTEN_LONG") == "1"
KILLS = 200 if LONG else 5


@pytest.mark.timeout(3600 if LONG else 900)
async def test_nothing_acknowledged_is_lost_when_the_daemon_is_killed_under_load(tmp_path, capsys):
    data_dir = tmp_path / "data"
    async with running(data_dir) as daemon, aiohttp.ClientSession() as http:
        storm = Storm(daemon, http, seed=int(os.environ.get("SANDKASTEN_SEED", "7")))
        kept = await storm.prepared(4)
        await storm.blow(kept, KILLS, workers=4)
        with capsys.disabled():
            sys.stdout.write(f"\n{storm.report}\n")
        assert storm.report.kills >= KILLS
        assert await storm.check(kept) == []

        async def leftovers() -> list[str]:
            listed = await storm.told("GET", "/v1/sessions?limit=1000")
            expected = {one["id"] for one in listed if one["status"] == "running"}
            odd = (one for one in listed if one["id"] not in expected)
            wrong = [f"{one['id']} is {one['status']}" for one in odd]
            rows = [name.partition(".") for name in os.listdir(data_dir / "ledger/rows")]
            # The warm pool of the living daemon is no leftover.
            pooled = {name for name, _, stage in rows if stage == "spare"}
            for place in ("cells", "ledger/rows"):
                held = {name.partition(".")[0] for name in os.listdir(data_dir / place)}
                held = {name for name in held if name.startswith("sbx_")} - pooled
                wrong += [f"{one} is left in {place}" for one in held - expected]
                wrong += [f"{one} is not in {place}" for one in expected - held]
            return wrong

        assert await eventually(leftovers) == []
        for one in kept:
            assert await storm.ask("DELETE", f"/v1/sessions/{one.id}")
    with sqlite3.connect(data_dir / "sandkasten.db") as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
