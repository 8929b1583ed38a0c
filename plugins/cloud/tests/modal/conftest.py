"""A server that speaks Modal's protocol, and providers that use it by the SDK."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import SandboxLost
from sandkasten.model.ids import new_sandbox_id
from sandkasten_cloud.modal.modal_options import ModalOptions
from sandkasten_cloud.modal.modal_provider import ModalProvider
from sandkasten_cloud.provider import LABEL_ID, LABEL_OWNER, MachineOrder
from sandkasten_runtime.linux.programs import Programs
from sandkasten_runtime.wire.channel import Channel
from tests.cloud.modal.modal_server import ModalServer
from tests.cloud.modal.modal_service import served_images
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.cloud.modal.modal_control import Rented

RUNNER = "/opt/sandkasten/sandkasten-runner"
SOCKET = "/run/runner.sock"
KEY = "/opt/sandkasten/keys/token"


@dataclass(slots=True)
class Rental:
    """A provider of an installation of its own, and what it has at the server."""

    server: ModalServer
    provider: ModalProvider
    owner: str
    programs: dict[str, bytes] = field(
        default_factory=lambda: {RUNNER: Programs.found(None, None).runner.read_bytes()}
    )

    def order(self, **changes: Any) -> MachineOrder:
        """Return an order for a machine whose port is the socket of a runner."""
        sandbox_id = changes.pop("sandbox_id", None) or new_sandbox_id()
        wanted: dict[str, Any] = {
            "image": "debian",
            "cpus": 1.5,
            "memory_bytes": 300 << 20,
            "disk_bytes": 1 << 30,
            "lifetime_s": 600.0,
            "network": "none",
            "env": {"COLOUR": "green"},
            "files": {**self.programs, KEY: b"k" * 32},
            "programs": tuple(self.programs),
            "command": (RUNNER, "--listen", SOCKET, "--state-dir", "/opt/sandkasten/state"),
            "labels": {LABEL_OWNER: self.owner, LABEL_ID: sandbox_id},
        }
        return MachineOrder(sandbox_id=sandbox_id, **{**wanted, **changes})

    async def channel(self, machine_id: str) -> Channel:
        """Connect, again until the runner listens: before that, the relay finds no socket."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await Channel.open(await self.provider.connect(machine_id))
                except SandboxLost:
                    await asyncio.sleep(0.02)

    @property
    def running(self) -> list[Rented]:
        return [
            machine
            for machine in self.server.running
            if machine.tags.get(LABEL_OWNER) == self.owner
        ]


@pytest.fixture(scope="session")
def _server() -> Iterator[ModalServer]:
    with ModalServer(served_images()) as server:
        yield server


@pytest.fixture
def server(_server: ModalServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModalServer]:
    for name, value in _server.environment.items():
        monkeypatch.setenv(name, value)
    # Another worker's own configuration must not be read.
    monkeypatch.setenv("MODAL_CONFIG_PATH", "/nonexistent")
    secret = _server.token_secret
    yield _server
    _server.faults.clear()
    _server.control.clock_s = 0.0
    _server.token_secret = secret
    _server.clear()


@pytest.fixture
async def rent(server: ModalServer) -> AsyncIterator[Callable[..., Rental]]:
    rentals: list[Rental] = []

    def rent(owner: str = "", **options: Any) -> Rental:
        owner = owner or f"owner-{len(rentals)}"
        provider = ModalProvider(ModalOptions(**options), owner)
        # To a runner without a gate.
        provider._relay = (RUNNER, "--relay", SOCKET)
        rentals.append(Rental(server, provider, owner))
        return rentals[-1]

    yield rent
    for lent in rentals:
        await lent.provider.aclose()


@pytest.fixture
def rental(rent: Callable[..., Rental]) -> Rental:
    return rent()
