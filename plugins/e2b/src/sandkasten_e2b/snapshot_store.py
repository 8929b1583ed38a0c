"""Snapshots of E2B: the files of a sandbox's workspace, kept as one of the tenant's stored files.

So a snapshot counts against the quota of the tenant, is stored whole or not at all, and is listed
and removed as a stored file. It has no processes, memory or environment.
"""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sandkasten.errors import CommandNotFound, Conflict, FileNotFound, InvalidRequest, NotFound
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.commands.exec_values import ExecRequest, ExecResult
from sandkasten.model.field_patterns import form
from sandkasten.model.sandbox.cell_spec import USER_ID, WORKSPACE
from sandkasten.model.sandbox.limit_names import public_limits
from sandkasten_server.api.files.stored_file import max_stored_bytes, store_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.journal_rows import StoredFile
    from sandkasten.model.sandbox.sandbox_values import Info
    from sandkasten_server.api.request.http_call import Call

PREFIX: Final = "e2b/snapshots/"
_FORKS: Final = "e2b/forks/"
_TAR: Final = "application/x-tar"
_ID: Final = form(r"snap_[0-9a-f]{16}")
# E2B's own form of a name, with an optional namespace.
_NAME: Final = form(r"([A-Za-z0-9_-]{1,64}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TAG: Final = ":default"
# A fork needs its copy for seconds; after a crash it is removed then.
_FORK_TTL_S: Final = 3600.0
_PAGE: Final = 1000
_MAX_TOLD: Final = 500
# Limits that make room for the files and for what ran; the others have no effect on them.
_LIMITS: Final = ("cpu_limit", "mem_limit_mb", "pids_limit", "workspace_mb", "tmp_mb")


@dataclass(frozen=True, slots=True)
class Snapshot:
    key: str
    """The key of the stored file."""
    id: str
    name: str
    """Empty: it has none."""
    sandbox: str
    image: str
    profile: str
    limits: Mapping[str, float]
    created_at: float

    @property
    def public(self) -> dict[str, object]:
        return {"snapshotID": self.id, "names": [self.name + _TAG] if self.name else []}


async def capture(call: Call, info: Info, name: str | None) -> Snapshot:
    """Store the files of a running sandbox."""
    if name is not None and not _NAME.match(name.removesuffix(_TAG)):
        raise InvalidRequest(
            f"{name[:80]!r} is not a valid name of a snapshot",
            hint="use letters, digits, '.', '_' and '-'",
            field="name",
        )
    return await _put(call, info, PREFIX, (name or "").removesuffix(_TAG), None)


async def capture_for_fork(call: Call, info: Info) -> Snapshot:
    """Store the files of a running sandbox for a while, in no list of snapshots."""
    return await _put(call, info, _FORKS, "", call.server.clock.now() + _FORK_TTL_S)


async def _put(
    call: Call, info: Info, prefix: str, name: str, expires_at: float | None
) -> Snapshot:
    limits = {key: value for key, value in public_limits(info.limits).items() if key in _LIMITS}
    the_id = f"snap_{secrets.token_hex(8)}"
    row = await store_of(call).put(
        call.principal.tenant,
        prefix + the_id,
        call.engine.files.tar_out(info.id, WORKSPACE),
        content_type=_TAR,
        expires_at=expires_at,
        metadata={
            "name": name,
            "sandbox": info.id,
            "image": info.image,
            "profile": info.profile,
            "limits": json.dumps(limits),
        },
        max_stored_bytes=max_stored_bytes(call),
    )
    snapshot = _snapshot(row)
    assert snapshot is not None
    return snapshot


async def find(call: Call, template: str) -> Snapshot | None:
    """Return the snapshot with an id, or the newest one with a name; None: there is none.

    A key without the scope of stored files finds none.
    """
    template = template.removesuffix(_TAG)
    files = call.server.stores.files
    if files is None or not call.principal.may("files"):
        return None
    if _ID.match(template):
        try:
            return _snapshot(await files.get(call.principal.tenant, PREFIX + template))
        except FileNotFound:
            return None
    named = [snapshot for snapshot in await _all(call) if template == snapshot.name]
    return max(named, key=lambda snapshot: snapshot.created_at, default=None)


async def listed(call: Call, *, sandbox: str | None, name: str | None) -> list[Snapshot]:
    """Return the snapshots of the tenant, the newest first."""
    wanted = None if name is None else name.removesuffix(_TAG)
    snapshots = [
        snapshot
        for snapshot in ([] if call.server.stores.files is None else await _all(call))
        if sandbox in (None, snapshot.sandbox) and wanted in (None, snapshot.name, snapshot.id)
    ]
    return sorted(snapshots, key=lambda snapshot: (snapshot.created_at, snapshot.id), reverse=True)


async def _all(call: Call) -> Sequence[Snapshot]:
    snapshots: list[Snapshot] = []
    after: str | None = None
    while True:
        page = await store_of(call).list(
            call.principal.tenant, prefix=PREFIX, limit=_PAGE, after=after
        )
        snapshots += [snapshot for snapshot in map(_snapshot, page) if snapshot is not None]
        if len(page) < _PAGE:
            return snapshots
        after = page[-1].key


async def fill(call: Call, snapshot: Snapshot, info: Info) -> None:
    """Unpack the files into the workspace of a new sandbox, as files of its ordinary user."""
    await _unpack(call, snapshot, info)
    if info.profile != "dev":
        return
    # They were unpacked by root.
    request = ExecRequest(
        ("chown", "-Rh", f"{USER_ID}:{USER_ID}", WORKSPACE),
        timeout_seconds=info.limits.max_exec_timeout_s,
    )
    result = await call.engine.exec(info.id, request, line="give the files to the user")
    if result.exit_code != 0:
        raise Conflict(
            f"the files of snapshot {snapshot.id} could not be given to the user: {_told(result)}",
            hint="try again; if the error stays, check chown in the image of the snapshot",
        )


async def _unpack(call: Call, snapshot: Snapshot, info: Info) -> None:
    """Unpack by the image's own `tar`; an image without it gets the files by the runner.

    The runner refuses links that lead out of the workspace, and a virtual environment of Python has
    some.
    """
    async with store_of(call).read(call.principal.tenant, snapshot.key) as (_, pieces):
        request = ExecRequest(
            command=("tar", "-x", "-f", "-", "-C", WORKSPACE),
            timeout_seconds=info.limits.max_exec_timeout_s,
            keep_stdin_open=True,
        )
        try:
            began = await call.engine.exec_start(info.id, request, line="unpack a snapshot")
        except CommandNotFound:
            await call.engine.files.tar_in(info.id, WORKSPACE, pieces)
            return
        # If it ends early, its result has the reason.
        with suppress(Conflict, NotFound):
            async for piece in pieces:
                await call.engine.exec_stdin(info.id, began.exec_id, piece)
            await call.engine.exec_stdin(info.id, began.exec_id, b"", close=True)
    async for item in call.engine.exec_output(info.id, began.exec_id, follow=True):
        if isinstance(item, ExecResult) and item.exit_code != 0:
            raise Conflict(
                f"the files of snapshot {snapshot.id} could not be unpacked: {_told(item)}",
                hint="the workspace of the new sandbox may be too small; make a new snapshot",
            )


def _told(result: ExecResult) -> str:
    return result.stderr[:_MAX_TOLD].decode("utf-8", "replace").strip()


async def remove(call: Call, snapshot: Snapshot) -> None:
    await store_of(call).delete(call.principal.tenant, snapshot.key)


def _snapshot(row: StoredFile) -> Snapshot | None:
    """Return None for a file that the tenant stored under such a key by itself."""
    metadata = row.metadata
    try:
        limits = {name: float(value) for name, value in json.loads(metadata["limits"]).items()}
        return Snapshot(
            row.key,
            row.key.rpartition("/")[2],
            metadata["name"],
            metadata["sandbox"],
            metadata["image"],
            metadata["profile"],
            limits,
            row.created_at,
        )
    except (KeyError, ValueError, AttributeError, TypeError, OverflowError, RecursionError):
        return None
