"""The self-test before the first sandbox: passed once; a deviation refuses every sandbox."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import IsolationRefused
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten_runtime.backends.launched_sandboxes import LaunchedCell
from sandkasten_runtime.backends.local import backend, bwrap_arguments
from sandkasten_runtime.backends.local.backend import LocalBackend

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.promise("P04")

SPEC = CellSpec(image=Image("host"))


def marks(data_dir: Path) -> list[Path]:
    return list(data_dir.glob("selftest-*"))


async def test_an_isolated_host_is_examined_once(tmp_path: Path) -> None:
    first = await LocalBackend(tmp_path).create(new_sandbox_id(), SPEC)
    await first.destroy()
    (mark,) = marks(tmp_path)
    seen = mark.stat().st_mtime_ns
    second = await LocalBackend(tmp_path).create(new_sandbox_id(), SPEC)
    await second.destroy()
    assert mark.stat().st_mtime_ns == seen


async def test_a_deviation_refuses_every_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writable /dev, as bubblewrap creates it by default."""

    def careless(spec: CellSpec, ground: bwrap_arguments.BwrapPlatform) -> list[str]:
        args = bwrap_arguments.bwrap_args(spec, ground)
        at = args.index("/dev", args.index("/dev/shm"))
        assert args[at - 1] == "--remount-ro"
        return args[: at - 1] + args[at + 1 :]

    monkeypatch.setattr(backend, "bwrap_args", careless)
    local = LocalBackend(tmp_path)
    for _ in range(2):
        with pytest.raises(IsolationRefused) as caught:
            await local.create(new_sandbox_id(), SPEC)
        assert caught.value.details["deviations"] == ["/dev is writable"]
    assert list(await local.owned()) == []
    assert marks(tmp_path) == []
    assert list((tmp_path / "cells").iterdir()) == []


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.03, 0.1, 0.2])
async def test_a_cancelled_examination_leaves_nothing(tmp_path: Path, after_s: float) -> None:
    making = asyncio.create_task(LocalBackend(tmp_path).create(new_sandbox_id(), SPEC))
    await asyncio.sleep(after_s)  # the moment is the point
    making.cancel()
    with suppress(asyncio.CancelledError):
        await (await making).destroy()
    cells = tmp_path / "cells"
    assert not cells.exists() or list(cells.iterdir()) == []


async def test_an_examination_cancelled_during_its_clean_up_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()
    destroy = LaunchedCell.destroy

    async def observed(cell: LaunchedCell) -> None:
        begun.set()
        await destroy(cell)

    monkeypatch.setattr(LaunchedCell, "destroy", observed)
    making = asyncio.create_task(LocalBackend(tmp_path).create(new_sandbox_id(), SPEC))
    await begun.wait()
    making.cancel()
    with suppress(asyncio.CancelledError):
        await (await making).destroy()
    assert list((tmp_path / "cells").iterdir()) == []


async def test_leftovers_of_a_killed_examination_are_removed(tmp_path: Path) -> None:
    local = LocalBackend(tmp_path)
    cell = await local.create(new_sandbox_id(), SPEC)
    await cell.destroy()
    for mark in marks(tmp_path):
        mark.unlink()
    (tmp_path / "cells" / "selftest_0123456789abcdef").mkdir()
    again = await LocalBackend(tmp_path).create(new_sandbox_id(), SPEC)
    await again.destroy()
    assert list((tmp_path / "cells").iterdir()) == []
