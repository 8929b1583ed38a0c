"""Pods of ours as processes of this machine: a real gate and a real runner for each.

Their address is the loopback address and their port that of the backend's options, so one Pod at a
time can be reached.
"""

from __future__ import annotations

import asyncio
import base64
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sandkasten_runtime.linux.programs import Programs
from tests.loopback_port import wait_until_listened_on
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ADDRESS = "127.0.0.1"


@dataclass(slots=True)
class PodProcesses:
    """Implements `tests.kubernetes.fake_cluster.Node`."""

    place: Path
    _running: dict[str, list[subprocess.Popen[bytes]]] = field(default_factory=dict)

    async def start(
        self, name: str, pod: Mapping[str, Any], secret: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Start the gate and the runner as the kubelet would; return the status of the Pod."""
        place = self.place / name
        (place / "keys").mkdir(parents=True)
        for file, content in secret["data"].items():
            (place / "keys" / file).write_bytes(base64.b64decode(content))
        gate = next(one for one in pod["spec"]["containers"] if one["name"] == "gate")
        programs = Programs.found(None, None)
        hand_over = place / "hand-over"
        commands = (
            [programs.gate, "--pod", gate["command"][2], place / "keys", hand_over, place / "l"],
            [programs.runner, "--receive", hand_over, "--state-dir", place / "state"],
        )
        self._running[name] = [
            await asyncio.to_thread(subprocess.Popen, [str(word) for word in one])
            for one in commands
        ]
        # A kubelet reports a running Pod long after its gate listens.
        await asyncio.to_thread(wait_until_listened_on, int(gate["command"][2]))
        containers: list[dict[str, Any]] = [
            {"name": one, "state": {"running": {}}} for one in ("gate", "sandbox")
        ]
        return {"phase": "Running", "podIP": ADDRESS, "containerStatuses": containers}

    def kill(self, name: str) -> None:
        """End the processes of a Pod, as a node that dies does, without a word."""
        for one in self._running.get(name, ()):
            one.kill()

    async def stop(self, name: str) -> None:
        for one in self._running.pop(name, ()):
            one.kill()
            await asyncio.to_thread(one.wait, PATIENCE_S)

    async def aclose(self) -> None:
        for name in list(self._running):
            await self.stop(name)
