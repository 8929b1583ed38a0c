"""Names of sandboxes on the command line: ids, unique prefixes of ids, and `ID:path` in `cp`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest, SessionNotFound
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from sandkasten_server.cli.state import State

_WHOLE: Final = re.compile(r"sbx_[0-9a-f]{16,}\Z")
_START: Final = re.compile(r"(?:sbx_)?[0-9a-f]{1,64}\Z|sbx_\Z")


def pick(start: str, ids: Iterable[str]) -> str:
    """Return the id with this prefix (`sbx_` is optional); SessionNotFound or InvalidRequest."""
    all_ids, start = list(ids), _spelled(start)
    if start in all_ids:
        return start
    wanted = start if start.startswith("sbx_") else f"sbx_{start}"
    matches = [the_id for the_id in all_ids if _START.match(start) and the_id.startswith(wanted)]
    if not matches:
        raise SessionNotFound(
            f"no sandbox has the id {start[:80]!r}", hint="list them with: sandkasten ls"
        )
    if len(matches) > 1:
        raise InvalidRequest(
            f"{start!r} is the prefix of {len(matches)} sandboxes",
            hint=f"one of {', '.join(matches[:5])}",
        )
    return matches[0]


def _spelled(start: str) -> str:
    """Return the start of an id that may have the form of host names, with `-`."""
    return start.replace("-", "_", 1) if start.startswith("sbx-") else start


async def resolve(state: State, start: str) -> str:
    """Resolve a prefix by listing the sandboxes; a whole id needs no listing."""
    start = _spelled(start)
    if _WHOLE.match(start):
        return start
    return (await resolve_all(state, [start]))[0]


async def resolve_among(start: str, ids: Callable[[], Awaitable[Iterable[str]]]) -> str:
    """Resolve a prefix of an id that may be that of an ended sandbox, by the ids of records."""
    start = _spelled(start)
    return start if _WHOLE.match(start) else pick(start, await ids())


async def resolve_all(state: State, starts: Sequence[str]) -> list[str]:
    from sandkasten.client.server.server_pool import connect

    transport = await connect(state.place)
    ids = [info.id for info in await transport.list(all=True)]
    return [pick(start, ids) for start in starts]


@dataclass(frozen=True, slots=True)
class Remote:
    sandbox: str
    path: str


def side(text: str) -> Remote | str:
    """Parse one side of `cp`: `ID:path`, or a local path; a local name with a colon is `./a:b`."""
    start, colon, path = text.partition(":")
    if not colon or not start or "/" in start or start.startswith("."):
        return text
    if not _START.match(start):
        raise InvalidRequest(
            f"{start[:80]!r} is not a valid sandbox id",
            hint=f"for a local file write ./{text[:80]}",
        )
    return Remote(start, path or ".")
