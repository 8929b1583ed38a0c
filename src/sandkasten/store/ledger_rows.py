"""A ledger record as JSON and back. Pure; anything unreadable raises ValueError.

Fields are added, never given a new meaning: a reader ignores what it does not know and
takes the default for what is missing, so two versions can share a data directory.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from typing import Any

from sandkasten.errors import SessionNotFound
from sandkasten.model.access.tenancy import DEFAULT_TENANT
from sandkasten.model.ids import sandbox_id
from sandkasten.model.sandbox.host_mounts import Mounted
from sandkasten.model.sandbox.ledger_record import Acquired, Record
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.limits import Limits, Unenforced

# Env names, labels and warnings of one sandbox; a file beyond this is not one of ours.
MAX_ROW_BYTES = 1024 * 1024


def encode_row(record: Record) -> bytes:
    row = {
        "id": record.id,
        "state": record.state.value,
        "backend": record.backend,
        "image": record.image,
        "profile": record.profile,
        "limits": asdict(record.limits),
        "created_at": record.created_at,
        "created_boottime": record.created_boottime,
        "boot_id": record.boot_id,
        "idle_timeout_s": record.idle_timeout_s,
        "lifetime_s": record.lifetime_s,
        "session_key": record.session_key,
        "labels": dict(record.labels),
        "env_names": list(record.env_names),
        "owner_pid": record.owner_pid,
        "owner_start": record.owner_start,
        "unenforced": [asdict(entry) for entry in record.unenforced],
        "warnings": list(record.warnings),
        "image_id": record.image_id,
        "workspace_id": record.workspace_id,
        "workspace_shared": record.workspace_shared,
        "acquired": record.acquired,
        "mounts": [asdict(entry) for entry in record.mounts],
        "tenant": record.tenant,
    }
    return json.dumps(row, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


def decode_row(data: bytes) -> Record:
    if len(data) > MAX_ROW_BYTES:
        raise ValueError("the row is too large")
    try:
        row = json.loads(data)
    except RecursionError as exc:
        raise ValueError("the row is nested too deep") from exc
    if not isinstance(row, dict):
        raise ValueError("the row is not an object")
    try:
        the_id = sandbox_id(_text(row, "id"))
    except SessionNotFound as exc:
        raise ValueError("the row has no id") from exc
    key = row.get("session_key")
    workspace = row.get("workspace_id")
    for name, value in (("session_key", key), ("workspace_id", workspace)):
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{name} is not a string")
    shared = row.get("workspace_shared", False)
    if not isinstance(shared, bool):
        raise ValueError("workspace_shared is not true or false")
    return Record(
        id=the_id,
        state=State(_text(row, "state")),
        backend=_text(row, "backend"),
        image=_text(row, "image"),
        profile=_text(row, "profile"),
        limits=_limits(row.get("limits")),
        created_at=_number(row, "created_at"),
        created_boottime=_number(row, "created_boottime"),
        boot_id=_text(row, "boot_id"),
        idle_timeout_s=_number(row, "idle_timeout_s"),
        lifetime_s=_number(row, "lifetime_s"),
        session_key=key,
        labels=_texts(row.get("labels", {})),
        env_names=_list(row.get("env_names", [])),
        owner_pid=int(_number(row, "owner_pid")),
        owner_start=int(_number(row, "owner_start")),
        unenforced=_unenforced(row.get("unenforced", [])),
        warnings=_list(row.get("warnings", [])),
        image_id=_text(row, "image_id") if "image_id" in row else "",
        workspace_id=workspace,
        workspace_shared=shared,
        acquired=_acquired(row.get("acquired", "cold")),
        mounts=_mounts(row.get("mounts", [])),
        tenant=_text(row, "tenant") if "tenant" in row else DEFAULT_TENANT,
    )


def _text(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a string")
    return value


def _number(row: dict[str, Any], name: str) -> float:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is not a number")
    return value


def _acquired(value: object) -> Acquired:
    for known in ("cold", "pool", "spare", "internal"):
        if value == known:
            return known
    raise ValueError("invalid `acquired`")


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise ValueError("labels are not strings")
    return value


def _list(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ValueError("a list contains a value that is not a string")
    return tuple(value)


def _limits(value: object) -> Limits:
    if not isinstance(value, dict):
        raise ValueError("limits are not an object")
    defaults = Limits()
    figures: dict[str, Any] = {}
    for one in fields(Limits):
        if one.name in value:
            figure = _number(value, one.name)
            kind = type(getattr(defaults, one.name))
            figures[one.name] = kind(figure)
    return Limits(**figures)


def _unenforced(value: object) -> tuple[Unenforced, ...]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ValueError("unenforced is not a list of objects")
    return tuple(
        Unenforced(_text(one, "limit"), _text(one, "reason"), _text(one, "remedy")) for one in value
    )


def _mounts(value: object) -> tuple[Mounted, ...]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ValueError("mounts is not a list of objects")
    return tuple(Mounted(_text(one, "name"), _text(one, "target")) for one in value)
