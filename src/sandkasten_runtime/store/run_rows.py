"""Runs of agents and workflows as JSON, as every store of runs keeps them."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields
from typing import Final

from sandkasten.errors import RunNotFound
from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.runs.run_values import RunRow, RunUsage

RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{0,63}\Z")
_FIELDS: Final = frozenset(field.name for field in fields(RunRow))
_USAGE: Final = frozenset(field.name for field in fields(RunUsage))
# We never write a larger file.
MAX_ROW_BYTES: Final = 64 << 20
# Limit of one page: inputs and outputs may be large, and a page is in memory.
PAGE_BYTES: Final = 8 << 20


def checked_run_id(run_id: str) -> str:
    if not RUN_ID.match(run_id):
        raise RunNotFound("no such run", hint="an id is run_ and hexadecimal digits")
    return run_id


def encode_run(row: RunRow) -> bytes:
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    values["usage"] = asdict(row.usage)
    values["quota"] = None if row.quota is None else asdict(row.quota)
    return json.dumps(values, ensure_ascii=False, default=plain_json).encode("utf-8", "replace")


def decode_run(raw: bytes) -> RunRow:
    if len(raw) > MAX_ROW_BYTES:
        raise ValueError("too large")
    values = json.loads(raw)
    fields = {name: value for name, value in values.items() if name in _FIELDS}
    usage = {name: value for name, value in values.get("usage", {}).items() if name in _USAGE}
    quota = None if values.get("quota") is None else TenantQuota(**values["quota"])
    return RunRow(**{**fields, "usage": RunUsage(**usage), "quota": quota})


def plain_json(value: object) -> object:
    """Convert read-only mappings and other values that JSON does not support."""
    if hasattr(value, "items"):
        return dict(value.items())
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    return str(value)
