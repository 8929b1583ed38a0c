"""The ssh tunnel to an engine when ssh fails."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from sandkasten.backends.docker.docker_options import DockerOptions
from sandkasten.backends.docker.engine.engine_address import address_of
from sandkasten.backends.docker.engine.ssh_tunnel import Tunnel
from sandkasten.errors import BackendUnavailable

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
    left = socket.socket(socket.AF_UNIX)
    left.bind(tunnel.socket)
    left.close()
    with pytest.raises(BackendUnavailable, match="Host key verification failed"):
        await tunnel.open()
    await tunnel.aclose()
