"""Writes and uploads are on disk before they are acknowledged, unless the caller forgoes it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sandkasten import Sandbox
from sandkasten.client.blocking import loop_thread
from sandkasten.client.server import server_pool
from tests import delayed_blocks
from tests.client.http.served import served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has workspaces with ext4"),
]
NAMES = ("bytes", "stream", "file", "tree/f")


@pytest.fixture(autouse=True)
def local_only(monkeypatch: pytest.MonkeyPatch, unisolated_only: None) -> Iterator[None]:
    """Open the embedded engine of this test: one of an earlier test has another environment."""
    monkeypatch.delenv("SANDKASTEN_BACKEND")
    loop_thread.run(server_pool.aclose())
    yield
    loop_thread.run(server_pool.aclose())


def all_unflushed(box: Sandbox, tmp_path: Path, *, flush: bool) -> bool:
    """Return whether no file was on disk when it was acknowledged. Another program may have flushed
    all file systems meanwhile, so it is tried several times.
    """
    return any(
        unflushed(box, tmp_path / str(attempt), flush=flush) == [*NAMES] for attempt in range(5)
    )


def unflushed(box: Sandbox, tmp_path: Path, *, flush: bool) -> list[str]:
    """Write a file in each way; return those that were not on disk when they were acknowledged."""
    source = tmp_path / f"source-{flush}" / "f"
    source.parent.mkdir(parents=True)
    source.write_bytes(delayed_blocks.DATA)
    names = [f"{flush}/{name}" for name in NAMES]
    box.write(names[0], delayed_blocks.DATA, flush=flush)
    with source.open("rb") as file:
        box.write(names[1], file, flush=flush)
    box.upload(source, names[2], flush=flush)
    box.upload(source.parent, names[3].removesuffix("/f"), flush=flush)
    told = box.exec(delayed_blocks.command(*names))
    assert told.exit_code == 0, told.stderr
    return [name.partition("/")[2] for name in told.stdout.split()]


def test_a_caller_can_forgo_the_flush(tmp_path):
    with Sandbox(data_dir=tmp_path / "data") as box:
        assert unflushed(box, tmp_path, flush=True) == []
        assert all_unflushed(box, tmp_path, flush=False)


def test_a_caller_can_forgo_the_flush_through_a_daemon(tmp_path):
    with (
        served(tmp_path / "data", backend="local") as daemon,
        Sandbox(**daemon.where) as box,
    ):
        assert unflushed(box, tmp_path, flush=True) == []
        assert all_unflushed(box, tmp_path, flush=False)


def test_a_caller_cannot_turn_on_what_the_operator_turned_off(tmp_path, monkeypatch):
    monkeypatch.setenv("SANDKASTEN_DISK_FLUSH", "false")
    with Sandbox(data_dir=tmp_path / "data") as box:
        assert all_unflushed(box, tmp_path, flush=True)
