"""The database after a killed writer and on a full disk."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from sandkasten.model.audit_records import AuditFilter
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_server.daemon.persistent_stores import open_books
from tests.patience import PATIENCE_S
from tests.platform_choice import LONG
from tests.store.writer import content

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 20 if LONG else 6


async def killed_writer(data_dir: Path, files: int, calls: int) -> list[tuple[str, str]]:
    """Kill a writer after it acknowledged so many files, and then so many calls of any kind.

    Return all that it acknowledged.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.store.writer",
        str(data_dir),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    first = b""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while first.count(b"file ") < files:
                first += await process.stdout.readline()
            for _ in range(calls):
                first += await process.stdout.readline()
    finally:
        process.kill()
    lines = (first + await process.stdout.read()).decode().splitlines(keepends=True)
    await process.wait()
    return [
        (kind, the_id) for kind, the_id in (line.split() for line in lines if line.endswith("\n"))
    ]


@pytest.mark.promise("P33")
async def test_a_writer_killed_at_any_point_loses_nothing_acknowledged(tmp_path):
    settings = load({"data_dir": str(tmp_path), "backend": "local"}, {}, tmp_path)
    said: dict[str, set[str]] = {}
    chance = random.Random(4)
    for _ in range(ROUNDS):
        for kind, the_id in await killed_writer(
            tmp_path, chance.randint(1, 3), chance.randint(0, 20)
        ):
            said.setdefault(kind, set()).add(the_id)
        # Opening checks the whole file, because it was not closed in order.
        async with open_books(settings, SystemClock()) as books:
            sessions = {one.id: one for one in await books.journal.sessions(None, limit=10**6)}
            assert books.audit is not None
            audited = await books.audit.read(AuditFilter(limit=10**6))
            keys = {one.id for one in await books.keys.list()}
            files = {one.key: one for one in await books.files.list("default", limit=10**6)}
            assert said.get("session", set()) <= set(sessions)
            assert all(sessions[one].status == "destroyed" for one in said.get("ended", ()))
            assert said.get("audit", set()) <= {one.target for one in audited}
            head = await books.journal.audit_head()
            assert (await books.audit.verify([head] if head else [])).flaw is None
            assert said.get("key", set()) <= keys
            assert said.get("file", set()) <= set(files)
            for key in files:
                async with books.files.read("default", key) as (_, pieces):
                    assert b"".join([piece async for piece in pieces]) == content(key)
            assert os.listdir(tmp_path / "files" / "making") == []
    assert {kind: len(ids) > ROUNDS // 2 for kind, ids in said.items()} == dict.fromkeys(
        ("session", "ended", "audit", "key", "file"), True
    )


@pytest.mark.promise("P34")
def test_a_full_disk_acknowledges_nothing_and_recovers_without_a_restart(tmp_path):
    alone = ["unshare", "--mount", "--propagation", "private"]
    if os.geteuid() != 0:
        alone = ["unshare", "--user", "--map-root-user", "--mount"]
    done = subprocess.run(
        [*alone, sys.executable, "-m", "tests.store.full_disk", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    refused = "QUOTA_EXCEEDED disk"
    assert json.loads(done.stdout) == {
        "before": "ok",
        "full": refused,
        "many at once": [refused],
        "audit": refused,
        "key": refused,
        "key works": False,
        "file": refused,
        "flush": refused,
        "read": True,
        "over http": [507, 507, 200],
        "over http, after": [201, 201, 200],
        "after": ["ok"] * 5,
        "exec": ["exe_1"],
        "making": [],
        "kept": True,
        "files": ["k"],
    }
