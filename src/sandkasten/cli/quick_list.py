"""Print the list of `ls` from a daemon's socket, with few imports.

`show` returns None if anything about the command line, the daemon or its list is unusual; then it
has printed nothing, and the full command runs.
"""

from __future__ import annotations

from sandkasten.cli.quick_commands import catch_signals, daemon_of, headers_of, restore_signals

# Not from typing, which takes longer to import than this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket
    from typing import Any

    from sandkasten.cli.plain_options import Parsed

# A list takes less; the full command waits longer and says so.
_LIST_S = 10.0


def show(parsed: Parsed) -> int | None:
    """Print the list of a daemon; None if anything about it is unusual."""
    if parsed.words or "backend" in parsed.before:
        return None
    daemon = daemon_of(parsed.before)
    if daemon is None or daemon.connection is None:
        return None
    quiet = parsed.options.get("quiet", False)
    headers = headers_of(daemon, "*/*")
    before = catch_signals()
    try:
        with daemon.connection as connection:
            connection.settimeout(_LIST_S)
            infos = None if headers is None else _listed(connection, headers, usage=not quiet)
    except KeyboardInterrupt:
        return 130
    except (OSError, ValueError):
        return None
    finally:
        restore_signals(before)
    if infos is None:
        return None
    from time import time

    from sandkasten.cli.output import put, put_sandboxes

    if not quiet:
        put_sandboxes(infos, [info.memory_bytes for info in infos], time())
        return 0
    for info in infos:
        put(info.id)
    return 0


def _listed(connection: socket, headers: dict[str, str], *, usage: bool) -> list[Any] | None:
    """Return the sandboxes, oldest first; None if there are more pages or one is not plain."""
    from json import loads

    from sandkasten.client.plain.plain_http import PlainAnswer, send

    send(connection, "GET", "/v1/sessions?usage=true" if usage else "/v1/sessions", headers)
    found = PlainAnswer(connection)
    if found.status != 200 or b"x-next-cursor" in found.headers:
        return None
    values = loads(found.read())
    if not isinstance(values, list):
        return None
    infos = [_info(value, usage=usage) for value in values]
    return None if None in infos else sorted(infos, key=lambda info: info.created_at)


def _info(value: Any, *, usage: bool) -> Any:
    """Return the fields of a sandbox that the table has; None if one is missing."""
    from types import SimpleNamespace

    if not isinstance(value, dict):
        return None
    info = SimpleNamespace(
        **{name: value.get(name) for name in ("id", "image", "backend", "status", "labels")},
        **{name: value.get(name) for name in ("workspace_id", "session_key")},
        created_at=value.get("created_at_unix"),
        expires_at=value.get("expires_at_unix"),
        memory_bytes=None,
    )
    used = value.get("usage")
    if usage and info.status in ("running", "paused"):
        if not isinstance(used, dict):
            return None
        info.memory_bytes = used.get("memory_bytes")
    plain = (
        all(type(one) is str for one in (info.id, info.image, info.backend, info.status))
        and all(one is None or type(one) is str for one in (info.workspace_id, info.session_key))
        and all(type(one) in (int, float) for one in (info.created_at, info.expires_at))
        and (info.memory_bytes is None or type(info.memory_bytes) is int)
        and type(info.labels) is dict
        and all(type(one) is str for one in info.labels.values())
    )
    return info if plain else None
