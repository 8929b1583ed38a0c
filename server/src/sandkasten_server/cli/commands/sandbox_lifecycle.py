"""`create`, `fork`, `pause`, `resume` and `rm`: the lifecycle of persistent sandboxes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandkasten.errors import SandkastenError
from sandkasten_server.cli.commands.listings import described
from sandkasten_server.cli.create_progress import create_progress
from sandkasten_server.cli.exit_status import EXIT_OURS
from sandkasten_server.cli.output import put, put_json, report, say, size, tell
from sandkasten_server.cli.sandbox_names import resolve, resolve_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.sandbox.sandbox_values import UpdateRequest
    from sandkasten_server.cli.state import State


async def create(state: State, options: dict[str, Any]) -> None:
    """Create a sandbox with these keyword arguments of the client, and print its id."""
    from sandkasten.client.sandbox import AsyncSandbox

    async with create_progress(state, options):
        box = await AsyncSandbox(**options, **state.where)
    info = box.known or await box.info()
    if state.json:
        put_json(described(info))
        return
    for warning in info.warnings:
        tell("warning", warning)
    lacking = [f"{limit.limit} is not enforced: {limit.reason}" for limit in info.unenforced]
    if lacking and _first_since_boot("\n".join(lacking)):
        for text in lacking:
            tell("warning", text)
        tell("hint", "this warning is shown once; sandkasten doctor shows it again, with remedies")
    put(info.id)


def _first_since_boot(text: str) -> bool:
    """Return whether this was not shown to the user since the machine started, and remember it."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = Path(state, "sandkasten", "warnings")
    try:
        text = f"{Path('/proc/sys/kernel/random/boot_id').read_text()}{text}"
        if path.exists() and path.read_text() == text:
            return False
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(text)
    except (OSError, ValueError):
        # A home that cannot be written keeps the warning.
        pass
    return True


async def update(state: State, start: str, request: UpdateRequest) -> None:
    from sandkasten.client.server.server_pool import connect

    transport = await connect(state.place)
    info = await transport.update(await resolve(state, start), request)
    if state.json:
        put_json(described(info))
    else:
        put(info.id)


async def pause(state: State, start: str, *, reclaim: bool) -> None:
    """Pause a sandbox; with `reclaim`, also release memory."""
    from sandkasten.client.server.server_pool import connect

    transport = await connect(state.place)
    info = await transport.pause(await resolve(state, start))
    freed = await transport.reclaim(info.id) if reclaim else None
    if state.json:
        put_json({**described(info), "reclaimed_bytes": freed})
        return
    if freed is not None:
        say(f"{size(freed)} released")
    put(info.id)


async def resume(state: State, start: str) -> None:
    from sandkasten.client.server.server_pool import connect

    transport = await connect(state.place)
    info = await transport.resume(await resolve(state, start))
    if state.json:
        put_json(described(info))
    else:
        put(info.id)


async def fork(state: State, start: str, count: int) -> int:
    """Create copies of a sandbox; the failure of one does not stop the others."""
    from sandkasten.client.server.server_pool import connect
    from sandkasten.model.json_codec import to_json
    from sandkasten.model.sandbox.sandbox_values import ForkRequest
    from sandkasten_server.cli.commands.snapshots import warn_not_kept

    transport = await connect(state.place)
    forked = await transport.fork(await resolve(state, start), ForkRequest(count))
    errors = [result for result in forked.results if isinstance(result, SandkastenError)]
    infos = [result for result in forked.results if not isinstance(result, SandkastenError)]
    if state.json:
        put_json(
            {
                "created": [described(info) for info in infos],
                "failed": [{"code": error.code, "message": error.message} for error in errors],
                "not_kept": to_json(forked.not_kept),
            }
        )
        return EXIT_OURS if errors else 0
    for info in infos:
        put(info.id)
    warn_not_kept(forked.not_kept)
    for error in errors:
        report(error, as_json=False)
    return EXIT_OURS if errors else 0


async def remove(
    state: State, starts: Sequence[str], *, everything: bool, all_tenants: bool = False
) -> int:
    """Remove the named sandboxes or all; a failure does not stop the others."""
    from sandkasten.client.server.server_pool import connect

    transport = await connect(state.place)
    owners: dict[str, str] = {}
    if everything:
        infos = await transport.list(all=True, all_tenants=all_tenants)
        ids = [info.id for info in infos]
        if all_tenants:
            owners = {info.id: info.tenant for info in infos}
    else:
        ids = list(dict.fromkeys(await resolve_all(state, starts)))
    removed: list[str] = []
    failures: list[SandkastenError] = []
    for the_id in ids:
        try:
            await (await connect(state.place_of(owners.get(the_id)))).destroy(the_id)
        except SandkastenError as exc:
            failures.append(exc)
            if not state.json:
                report(exc, as_json=False)
        else:
            removed.append(the_id)
            if not state.json:
                put(the_id)
    if state.json:
        failed = [{"code": error.code, "message": error.message} for error in failures]
        put_json({"removed": removed, "failed": failed})
    return EXIT_OURS if failures else 0
