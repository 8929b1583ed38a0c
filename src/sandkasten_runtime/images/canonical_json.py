"""JSON written in one way only, so that equal values have equal digests."""

from __future__ import annotations

import json


def canonical_json(value: object) -> bytes:
    """Return the value as ASCII JSON with sorted keys and no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
