"""Operator options for Fly: data only, checked where settings are read."""

from __future__ import annotations

from dataclasses import field
from typing import Final, Literal

from sandkasten.backends.cloud.machine_plan import CloudOptions, MissingSetting
from sandkasten.lazy_dataclass import dataclass

Reach = Literal["service", "private"]
CpuKind = Literal["shared", "performance"]

FLY_REACHES: Final = ("service", "private")
CPU_KINDS: Final = ("shared", "performance")
API_URL: Final = "https://api.machines.dev"
PROGRAMS: Final = "/opt/sandkasten/programs"
TOKEN_VARIABLE: Final = "FLY_API_TOKEN"  # noqa: S105  (the name of a variable)


@dataclass(frozen=True, slots=True)
class FlyOptions:
    app: str = ""
    """The app whose machines are the sandboxes. It should have no others, and a network of its own:
    machines of one network reach each other."""
    api_url: str = API_URL
    api_token: str = field(default="", repr=False)
    """A deploy token of the app."""
    programs: str = PROGRAMS
    """The directory of every image with our programs."""
    region: str = ""
    """Where machines are made; empty: as Fly chooses."""
    cpu_kind: CpuKind = "shared"
    reach: Reach = "service"
    """How gates are reached: at a port of the app, or at the private address of each machine."""
    address: str = ""
    """The host of such ports; empty: APP.fly.dev."""
    timeout_s: float = 30.0
    """For one answer of the API."""
    cloud: CloudOptions = field(default_factory=CloudOptions)

    def missing(self) -> MissingSetting | None:
        if not self.app:
            return MissingSetting(
                "backends.fly.app is not set",
                "run fly apps create NAME --network NAME, and set backends.fly.app to NAME",
            )
        if not self.api_token:
            return MissingSetting(
                "backends.fly.api_token is not set",
                f"set {TOKEN_VARIABLE} to the output of: fly tokens create deploy -a {self.app}",
            )
        return None

    @property
    def host(self) -> str:
        return self.address or f"{self.app}.fly.dev"
