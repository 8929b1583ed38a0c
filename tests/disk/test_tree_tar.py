"""A directory tree as a tar stream."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import threading

import pytest

from sandkasten.disk import tree_tar
from sandkasten.disk.tree_tar import PIECE_BYTES, packed
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


async def test_a_tree_is_packed_with_links_modes_and_any_name(tmp_path):
    tree = tmp_path / "tree"
    (tree / "d" / "empty").mkdir(parents=True)
    big = os.urandom(2 * PIECE_BYTES + 7)
    (tree / "d" / "big").write_bytes(big)
    (tree / "run").write_bytes(b"#!")
    (tree / "run").chmod(0o755)
    (tree / "link").symlink_to("/etc/passwd")
    (tree / ("n" * 200)).write_bytes(b"")
    (tree / os.fsdecode(b"\xff")).write_bytes(b"x")
    os.mkfifo(tree / "fifo")
    data = b"".join([piece async for piece in packed(tree, "opt/here")])
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as tar:
        found = {one.name: one for one in tar.getmembers()}
        assert set(found) == {
            *("opt", "opt/here", "opt/here/d", "opt/here/d/big", "opt/here/d/empty"),
            *("opt/here/run", "opt/here/link", f"opt/here/{'n' * 200}"),
            f"opt/here/{os.fsdecode(bytes([255]))}",
        }
        file = tar.extractfile("opt/here/d/big")
        assert file is not None
        assert file.read() == big
    assert (found["opt/here/run"].mode, found["opt/here/run"].uid) == (0o755, 0)
    assert found["opt/here/link"].linkname == "/etc/passwd"


async def test_a_reader_may_leave_and_a_missing_tree_is_an_error(tmp_path):
    (tmp_path / "big").write_bytes(bytes(3 * PIECE_BYTES))
    pieces = packed(tmp_path)
    assert len(await anext(pieces)) >= PIECE_BYTES
    await pieces.aclose()
    with pytest.raises(FileNotFoundError):
        async for _ in packed(tmp_path / "none"):
            pass


def test_the_end_of_a_loop_ends_the_reading(tmp_path, monkeypatch):
    begun, leave = threading.Event(), threading.Event()

    def slow(tree, prefix):
        begun.set()
        leave.wait(PATIENCE_S)
        yield b""

    async def read() -> None:
        async for _ in packed(tmp_path):
            pass

    async def main() -> asyncio.Task[None]:
        task = asyncio.create_task(read())
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        # The loop ends before.
        threading.Timer(0.2, leave.set).start()
        return task

    monkeypatch.setattr(tree_tar, "_pieces", slow)
    assert asyncio.run(main()).cancelled()
