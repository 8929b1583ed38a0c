"""Several processes on one data directory: crashes leave only what a sweep removes."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.sandbox_values import CreateRequest, Swept
from sandkasten_runtime.store.ledger_directory import DirectoryStore
from tests.engine.folder_backend import folder_engine

pytestmark = pytest.mark.anyio
REPOSITORY = Path(__file__).parents[2]


async def act(what: str, root: Path) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.engine.folder_backend",
        what,
        str(root),
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


def litter(root: Path) -> tuple[list[str], list[str]]:
    return (
        [path.name for path in (root / "ledger" / "rows").iterdir()],
        [path.name for path in (root / "cells").iterdir()],
    )


@pytest.mark.parametrize(
    ("when", "state", "cells"),
    [
        ("before", State.CREATING, 0),
        ("after", State.CREATING, 1),
        ("destroy", State.DESTROYING, 1),
    ],
)
async def test_a_process_that_dies_midway_leaves_a_row_that_a_sweep_finishes(
    tmp_path, when, state, cells
):
    code, _ = await act(when, tmp_path)
    assert code == 9
    (row,) = await DirectoryStore(tmp_path / "ledger").list()
    assert (row.state, len(litter(tmp_path)[1])) == (state, cells)
    engine = folder_engine(tmp_path)
    assert await engine.sweep() == Swept(finished=(row.id,))
    assert litter(tmp_path) == ([], [])
    # And the key it held is free.
    info = await engine.create(CreateRequest(session_key="k"))
    assert info.created
    await engine.destroy(info.id)
    await engine.aclose()


async def test_a_key_left_by_a_crash_is_free_without_a_sweep(tmp_path):
    await act("after", tmp_path)
    engine = folder_engine(tmp_path)
    info = await engine.create(CreateRequest(session_key="k"))
    assert info.created
    await engine.destroy(info.id)
    await engine.aclose()
    assert litter(tmp_path) == ([], [])


@pytest.mark.promise("P16")
@pytest.mark.long(reason="`make test` has it for workspaces")
async def test_a_hundred_creates_in_four_processes_create_one_sandbox(tmp_path):
    answers = await asyncio.gather(*(act("key", tmp_path) for _ in range(4)))
    assert [code for code, _ in answers] == [0, 0, 0, 0]
    assert len({text for _, text in answers}) == 1
    rows, cells = litter(tmp_path)
    assert (len(rows), len(cells)) == (1, 1)


@pytest.mark.long(reason="`make test` has it within one process")
async def test_processes_that_create_sweep_and_destroy_concurrently_do_not_interfere(tmp_path):
    answers = await asyncio.gather(*(act("churn", tmp_path) for _ in range(4)))
    assert [code for code, _ in answers] == [0, 0, 0, 0]
    assert litter(tmp_path) == ([], [])
