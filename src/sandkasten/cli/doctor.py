"""`doctor`: what sandboxes need on this machine, what is there, and the remedy for the rest."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from sandkasten.cli.output import put, put_json, visible
from sandkasten.cli.state import EXIT_NOT_READY
from sandkasten.errors import BackendUnavailable
from sandkasten.model.readiness import Readiness

if TYPE_CHECKING:
    from sandkasten.cli.state import State


async def examine(state: State) -> int:
    """0 when sandboxes can be made here, 1 when not."""
    found = await _readiness(state)
    if state.json:
        put_json(asdict(found))
    else:
        _show(found)
    return 0 if found.ready else EXIT_NOT_READY


async def _readiness(state: State) -> Readiness:
    from sandkasten.client.embedded import connect

    try:
        return await (await connect(state.place)).probe(state.backend)
    except BackendUnavailable as exc:
        # The engine cannot even be opened here: that is the finding.
        return Readiness(ready=False, reason=exc.message, remedy=exc.hint)


def _show(found: Readiness) -> None:
    for one in found.requirements:
        mark = "ok  " if one.ok else ("MISS" if one.required else "warn")
        put(f"{mark}  {visible(one.name)}: {visible(one.state)}")
        if not one.ok and one.remedy:
            put(f"      remedy: {visible(one.remedy)}")
    for limit in found.unenforced:
        put(f"warn  limit {visible(limit.limit)} is not enforced: {visible(limit.reason)}")
        if limit.remedy:
            put(f"      remedy: {visible(limit.remedy)}")
    if found.ready:
        put("ready: sandboxes can be made here")
        return
    put(f"not ready: {visible(found.reason or 'something required is missing')}")
    if found.remedy:
        put(f"      remedy: {visible(found.remedy)}")
