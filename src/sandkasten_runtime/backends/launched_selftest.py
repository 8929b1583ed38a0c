"""The self-test of a backend that uses our launcher: a temporary sandbox, examined before the
first one of a boot.

A sandbox that is less isolated than promised is refused, and the deviations are named. The host
image, images and the dev profile are assembled differently, so each is tested when first used. A
result is kept in a file named after everything it depends on, so that the test runs once per boot
and set-up. What is examined is the backend's own.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from sandkasten.disk.atomic_file import write_file
from sandkasten.disk.cleanup import finish
from sandkasten.disk.file_lock import locked
from sandkasten.errors import BackendUnavailable, IsolationRefused
from sandkasten.model.ids import SandboxId
from sandkasten.model.sandbox.cell_spec import RUNNER_DIR, CellSpec
from sandkasten_runtime.linux.sandbox_removal import remove
from sandkasten_runtime.wire.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sandkasten_runtime.backends.launched_sandboxes import LaunchedCell
    from sandkasten_runtime.linux.state_layout import Layout

    Create = Callable[[SandboxId, CellSpec], Awaitable[LaunchedCell]]
    Examine = Callable[[LaunchedCell, Channel], Awaitable[list[str]]]

DEADLINE_S = 30.0
# Our own program, because an image may have none. It rests long enough to be inspected, and too
# short to matter if we are killed meanwhile.
SUBJECT = (f"{RUNNER_DIR}/runner", "--rest")
_PREFIX = "selftest_"


def kind_of(spec: CellSpec) -> str:
    """Return the kind; sandboxes of one kind are assembled the same way."""
    if spec.image.kind == "host":
        return "host"
    return f"image-{spec.profile}{'-writable' if spec.writable_root else ''}"


async def passed_once(
    layout: Layout, key: str, spec: CellSpec, test: Callable[[], Awaitable[str]]
) -> str:
    """Return the result of the test, which is kept for this key and kind of sandbox."""
    mark = layout.data_dir / f"selftest-{key}-{kind_of(spec)}"
    with suppress(FileNotFoundError):
        return mark.read_text()
    async with locked(layout.data_dir / "selftest"):
        with suppress(FileNotFoundError):
            return mark.read_text()
        # One at a time, so this was left by a process that was killed.
        for leftover in layout.cells(_PREFIX):
            await asyncio.to_thread(remove, layout, leftover)
        result = await test()
        for old in layout.data_dir.glob("selftest-*"):
            if not old.name.startswith(f"selftest-{key}-"):
                old.unlink(missing_ok=True)
        write_file(mark, result.encode(), durable=False)
        return result


async def judge(create: Create, spec: CellSpec, examine: Examine) -> None:
    """Examine a temporary sandbox like this one. Raise IsolationRefused for any deviation."""
    # Not an id that `owned` reports: it has no ledger record and must not look like a leftover.
    sandbox_id = SandboxId(_PREFIX + secrets.token_hex(8))
    # Nothing of the caller's: no kept workspace, no mounts, no environment.
    bare = CellSpec(image=spec.image, profile=spec.profile, writable_root=spec.writable_root)
    cell = await create(sandbox_id, bare)
    try:
        async with asyncio.timeout(DEADLINE_S):
            channel = await Channel.open(await cell.dial())
            try:
                deviations = await examine(cell, channel)
            finally:
                await channel.aclose()
    except TimeoutError as exc:
        raise BackendUnavailable("a new sandbox does not answer in time") from exc
    finally:
        await finish(cell.destroy())
    if deviations:
        raise IsolationRefused(
            f"a new sandbox is less isolated than required: {'; '.join(deviations)}",
            hint="run `sandkasten doctor`; no sandbox is created until this is fixed",
            deviations=deviations,
        )
