"""Isolation levels, and the strength of each backend. Pure."""

from __future__ import annotations

from typing import Final

from sandkasten.model.backends.docker_engines import family

ISOLATIONS: Final = ("standard", "gvisor", "strongest")
"""What a request may ask for."""
MINIMA: Final = ("standard", "gvisor")
"""What an operator may demand."""

# One kernel shared with the host, or a second one in between. A backend that is not named here
# isolates nothing that was examined. How a provider isolates its machines was not examined either:
# they count as containers do.
_STRENGTH: Final = {
    "local": 1,
    "oci": 1,
    "docker": 1,
    "kubernetes": 1,
    "dagger": 1,
    "fly": 1,
    "e2b": 1,
    "modal": 1,
    "gvisor": 2,
}
_ENGINES: Final = frozenset({"docker", "kubernetes", "dagger", "fly", "e2b", "modal"})
# A Docker Engine and a cluster may still refuse it: `ports.RefusesNetworks`.
_NETWORKS: Final = frozenset(
    {"local", "oci", "gvisor", "docker", "kubernetes", "dagger", "fly", "e2b", "modal"}
)
# A Docker Engine over TCP without TLS refuses it when a sandbox is created.
_INSPECTIONS: Final = _NETWORKS - {"kubernetes", "dagger", "fly", "e2b", "modal"}
_WEAKEST: Final = {"standard": 1, "gvisor": 2}


def strength(backend: str) -> int:
    return _STRENGTH.get(family(backend), 0)


def has_network(backend: str) -> bool:
    """Return whether sandboxes of a backend can have a network."""
    return family(backend) in _NETWORKS


def has_inspection(backend: str) -> bool:
    """Return whether a backend can insert secrets and inspect TLS."""
    return family(backend) in _INSPECTIONS


def has_engine(backend: str) -> bool:
    """Return whether a backend depends on an engine that can be away while sandboxes live on."""
    return family(backend) in _ENGINES


def weakest_of(minimum: str) -> int:
    """Return the least strength that satisfies a level."""
    return _WEAKEST[minimum]
