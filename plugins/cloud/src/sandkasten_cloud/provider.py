"""What a provider of machines must be able to do; `CloudBackend` does the rest.

A provider rents a machine (a microVM or a container), puts our programs there, starts one command,
and opens byte streams to it. It knows neither commands nor files nor leases: these are the
runner's.

An implementation raises only classes of `errors`, made by `provider_errors`, and OSError where this
says so. It decides nothing by the clock of the provider.
"""

from __future__ import annotations

from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, Protocol

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.readiness import Readiness
    from sandkasten.ports import ByteStream
    from sandkasten_cloud.differences import Traits

NetworkMode = Literal["none", "full"]

LABEL_OWNER = "sandkasten.owner"
"""The installation that a machine belongs to: no other one removes it."""
LABEL_ID = "sandkasten.id"
"""The sandbox that it is."""
_MACHINE_ID: Final = lazy_pattern.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}\Z")


def is_machine_id(value: object) -> bool:
    """Return whether a value can be the id of a machine. It becomes a part of URLs and host names,
    where `..`, a slash or a dot would lead elsewhere.
    """
    return isinstance(value, str) and _MACHINE_ID.match(value) is not None


@dataclass(frozen=True, slots=True)
class MachineOrder:
    """A machine as we want it. What a provider cannot give is in its `Traits`, and was refused."""

    sandbox_id: SandboxId
    image: str
    """As the provider names it; see `Provider.image`."""
    cpus: float
    memory_bytes: int
    disk_bytes: int
    lifetime_s: float
    """The machine ends after this time, even if the daemon never returns."""
    network: NetworkMode
    env: Mapping[str, str] = field(repr=False)
    """For the command."""
    files: Mapping[str, bytes] = field(repr=False)
    """Contents by absolute path. Holds the key of the sandbox: only for root."""
    programs: Sequence[str] = ()
    """Those of the files that must be executable."""
    command: Sequence[str] = ()
    """Started once, as root, and never ended by the provider. It serves `port`."""
    port: int = 0
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Set when the machine is created: it is found by them."""
    region: str = ""


class Provider(Protocol):
    @property
    def name(self) -> str:
        """Return the name of the backend, of its settings and of its extra."""
        ...

    @property
    def traits(self) -> Traits: ...

    def image(self, names: Sequence[str]) -> str:
        """Return the provider's name of an image that a request means by these names, of which the
        last one is the target of an alias.
        """
        ...

    async def check(self) -> Readiness:
        """Return whether the credentials are accepted, and what is missing, with the remedy."""
        ...

    async def start(self, order: MachineOrder) -> str:
        """Return the id of a machine whose command was started. Asked twice, return the same one.

        If this raises or is cancelled, a machine may exist: the caller removes it by its label.
        """
        ...

    async def find(self, sandbox_id: SandboxId) -> str | None:
        """Return the machine of a sandbox of this installation; None if it has none."""
        ...

    async def machines(self) -> Mapping[SandboxId, str]:
        """Return all machines of this installation, by their labels."""
        ...

    async def connect(self, machine_id: str) -> ByteStream:
        """Open a new stream to the port of the machine. Raise SandboxLost if the machine is gone,
        OSError if it does not answer.
        """
        ...

    async def stop(self, machine_id: str) -> None:
        """Remove a machine. Twice is fine; so is an unknown one."""
        ...

    async def aclose(self) -> None:
        """Close connections; the machines keep running. Twice is fine."""
        ...
