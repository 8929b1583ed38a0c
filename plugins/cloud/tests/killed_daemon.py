"""A daemon that is killed around a create at a provider, and the one that starts after it."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from tests.client.http.served import served
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.client.http.served import Served

Machines = Callable[[str], Sequence[Any]]
"""Returns the machines at the provider of the installation of that name."""


def ask(daemon: Served, method: str, path: str, body: Any = None) -> Any:
    """Return the answer of a daemon; raise OSError if it fails."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} if path.startswith("/v1") else {}
    headers |= {"Authorization": f"Bearer {daemon.key}", "X-API-KEY": daemon.key}
    request = urllib.request.Request(daemon.url + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill_during_create(
    data: Path,
    backend: str,
    variables: Mapping[str, str],
    session: Mapping[str, Any],
    arrived: Callable[[], bool],
) -> str:
    """Kill a daemon as soon as its create has `arrived` where a test wants it. Return the name of
    its installation.
    """
    with served(data, backend=backend, **variables) as killed:
        asking = threading.Thread(target=_create_in_vain, args=(killed, session))
        asking.start()
        until(arrived)
        _kill(killed)
        asking.join(PATIENCE_S)
    return _owner(data, backend)


def check_that_nothing_is_left(
    data: Path, backend: str, variables: Mapping[str, str], machines: Machines
) -> None:
    """Start a daemon on the same data directory, which removes what the killed one left."""
    owner = _owner(data, backend)
    with served(data, backend=backend, **variables) as successor:
        until(lambda: not machines(owner))
        assert ask(successor, "GET", "/v1/sessions") == []
    assert not list((data / backend / "machines").iterdir())


def check_that_a_session_survives(
    data: Path,
    backend: str,
    variables: Mapping[str, str],
    session: Mapping[str, Any],
    machines: Machines,
) -> None:
    """Kill a daemon that has a session, and use the session by another daemon."""
    with served(data, backend=backend, **variables) as killed:
        created = ask(killed, "POST", "/v1/sessions", session)
        _kill(killed)
    owner = _owner(data, backend)
    with served(data, backend=backend, **variables) as successor:
        command = {"command": "echo alive"}
        done = ask(successor, "POST", f"/v1/sessions/{created['id']}/exec", command)
        assert done["stdout"] == "alive\n"
        assert len(machines(owner)) == 1
        ask(successor, "DELETE", f"/v1/sessions/{created['id']}")
        assert not machines(owner)


def _owner(data: Path, backend: str) -> str:
    return (data / backend / "owner").read_text()


def _kill(daemon: Served) -> None:
    daemon.process.kill()
    daemon.process.wait()


def _create_in_vain(daemon: Served, session: Mapping[str, Any]) -> None:
    with pytest.raises(OSError):  # noqa: PT011  (how the end is noticed depends on timing)
        ask(daemon, "POST", "/v1/sessions", session)
