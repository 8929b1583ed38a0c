"""Pages of a list of sandboxes or snapshots, and the time filter. Pure."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, TypeVar

from sandkasten.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence


class Listed(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def created_at(self) -> float: ...


L = TypeVar("L", bound=Listed)


def started_after(text: str | None) -> float | None:
    """Return a time as Unix seconds in whole milliseconds, which is what answers show."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError as exc:
        raise InvalidRequest(
            "startedAfter must be a time in ISO 8601",
            hint="2026-01-31T12:00:00Z",
            field="startedAfter",
        ) from exc
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp(), 3)


def page_of(
    items: Sequence[L], limit: int, token: str | None, *, newest_first: bool
) -> tuple[list[L], str | None]:
    """Return one page and the token of the next one; None on the last page."""
    ordered = sorted(items, key=lambda item: (item.created_at, item.id), reverse=newest_first)
    if token is not None:
        after = _read(token)
        ordered = [
            item
            for item in ordered
            if ((item.created_at, item.id) < after) is newest_first
            and (item.created_at, item.id) != after
        ]
    page = ordered[:limit]
    if len(ordered) <= limit:
        return page, None
    last = page[-1]
    return page, base64.urlsafe_b64encode(f"{last.created_at!r} {last.id}".encode()).decode()


def _read(token: str) -> tuple[float, str]:
    try:
        text = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True).decode()
        at, _, the_id = text.partition(" ")
        return float(at), the_id
    except ValueError as exc:
        raise InvalidRequest(
            "the token of the next page is not valid",
            hint="pass X-Next-Token of the previous page unchanged",
            field="nextToken",
        ) from exc
