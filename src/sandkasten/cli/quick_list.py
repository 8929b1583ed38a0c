"""Print the list of `ls`, or its ids for the shell's completion, with few imports.

Both read it from a daemon's socket. They return None if anything about the command line, the daemon
or its list is unusual; then they have printed nothing, and the full command runs.
"""

from __future__ import annotations

from sandkasten.cli.plain_options import GLOBAL, options_before
from sandkasten.cli.quick_commands import catch_signals, daemon_of, headers_of, restore_signals

# Not from typing, which takes longer to import than this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from socket import socket
    from typing import Any

    from sandkasten.cli.plain_options import Parsed
    from sandkasten.client.plain.daemon_socket import DaemonSocket

# A list takes less; the full command waits longer and says so.
_LIST_S = 10.0
# Commands whose first word is a sandbox.
OF_SANDBOXES = frozenset(
    ("code", "exec", "forward", "inspect", "kill", "logs", "pause", "ps", "replay", "resume")
    + ("rm", "shell", "stats", "update", "url")
)


def show(parsed: Parsed) -> int | None:
    """Print the list of a daemon; None if anything about it is unusual."""
    if parsed.words or "backend" in parsed.before:
        return None
    daemon = daemon_of(parsed.before)
    if daemon is None or daemon.connection is None:
        return None
    quiet = parsed.options.get("quiet", False)
    before = catch_signals()
    try:
        infos = _listed(daemon, usage=not quiet)
    except KeyboardInterrupt:
        return 130
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


def complete(environment: Mapping[str, str]) -> int | None:
    """Print the ids that complete the first word of a command, as the shell reads them."""
    shell = environment["_SANDKASTEN_COMPLETE"].removeprefix("complete_")
    words = _typed(shell, environment)
    head = None if words is None else options_before(words[1:], GLOBAL)
    if head is None or len(head[1]) != 2 or head[1][0] not in OF_SANDBOXES:
        return None
    before, (_, typed) = head
    daemon = None if typed.startswith("-") else daemon_of(before)
    if daemon is None or daemon.connection is None:
        return None
    infos = _listed(daemon, usage=False)
    if infos is None:
        return None
    ids = sorted(info.id for info in infos if info.id.startswith(typed))
    if environment.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return 0 if ids else 1
    from sandkasten.cli.output import put

    if shell == "zsh":
        quoted = "\n".join(f'"{name}"' for name in ids)
        put(f"_arguments '*: :(({quoted}))'" if ids else "_files")
    else:
        put("\n".join(ids))
    return 0


def _typed(shell: str, environment: Mapping[str, str]) -> list[str] | None:
    """Return the words up to the one that is being typed; None if they need the full parser."""
    if shell == "bash":
        # Typer's script sets IFS to a newline and joins the words with it.
        line = environment.get("COMP_WORDS", "").replace("\n", " ")
        words = line.split(" ")
        at = environment.get("COMP_CWORD", "")
        words = words[: int(at) + 1] if at.isascii() and at.isdecimal() else []
    elif shell in ("zsh", "fish"):
        line = environment.get("_TYPER_COMPLETE_ARGS", "")
        words = line.split(" ")
    else:
        return None
    plain = not any(character in line for character in "'\"\\\n\t") and "" not in words[:-1]
    return words if plain and len(words) > 1 else None


def _listed(daemon: DaemonSocket, *, usage: bool) -> list[Any] | None:
    """Return the sandboxes, oldest first; None if there are more pages or one is not plain."""
    headers = headers_of(daemon, "*/*")
    if headers is None or daemon.connection is None:
        return None
    try:
        with daemon.connection as connection:
            connection.settimeout(_LIST_S)
            return _read(connection, headers, usage=usage)
    except (OSError, ValueError):
        return None


def _read(connection: socket, headers: dict[str, str], *, usage: bool) -> list[Any] | None:
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
