"""A ledger record as JSON and back. Pure; unreadable data raises ValueError.

Fields are added but never change their meaning: a reader ignores unknown fields and uses the
default for missing ones, so two versions can share a data directory.
"""

from __future__ import annotations

import json

from sandkasten.errors import SessionNotFound
from sandkasten.model.ids import sandbox_id
from sandkasten.model.json_codec import from_json, to_json
from sandkasten.model.sandbox.ledger_record import Record

# Environment names, labels and warnings of one sandbox; we never write a larger file.
MAX_ROW_BYTES = 1024 * 1024


def encode_row(record: Record) -> bytes:
    row = to_json(record)
    return json.dumps(row, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


def decode_row(data: bytes) -> Record:
    if len(data) > MAX_ROW_BYTES:
        raise ValueError("the row is too large")
    try:
        record = from_json(Record, json.loads(data), "the row")
        sandbox_id(record.id)
    except RecursionError as exc:
        raise ValueError("the row is nested too deep") from exc
    except SessionNotFound as exc:
        raise ValueError("id must be the id of a sandbox") from exc
    return record
