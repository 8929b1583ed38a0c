"""The ssh tunnel to an engine when ssh fails."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import BackendUnavailable
from sandkasten_docker.docker_engine.docker_address import address_of
from sandkasten_docker.docker_engine.ssh_tunnel import Tunnel
from sandkasten_docker.docker_options import DockerOptions
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_stale_socket_of_a_killed_ssh_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\nsleep 0.2\necho Host key verification failed. >&2\nexit 255\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tunnel = Tunnel(address_of(DockerOptions(host="ssh://box")))
    tunnel._directory = str(tmp_path)
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(tunnel.socket)
    stale.close()
    with pytest.raises(BackendUnavailable, match="Host key verification failed"):
        await tunnel.open()
    await tunnel.aclose()


async def test_a_tunnel_whose_first_user_left_is_opened_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = tmp_path / "ssh"
    started = tmp_path / "started"
    # It takes a while, as a far host does; -L is followed by the path of the socket.
    program.write_text(
        f"#!/bin/sh\ntouch {started}\n"
        'while [ "$1" != -L ]; do shift; done\nsleep 0.5\ntouch "${2%%:*}"\nexec sleep 60\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tunnel = Tunnel(address_of(DockerOptions(host="ssh://box")))
    first = asyncio.create_task(tunnel.open())
    await asyncio.to_thread(_until, started)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await asyncio.to_thread(os.path.exists, await tunnel.open())
    await tunnel.aclose()


def _until(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
