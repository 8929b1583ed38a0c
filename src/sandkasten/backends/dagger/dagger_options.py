"""Options of the dagger backend, and the engine for a network. Pure.

Dagger has no network switch for one command, so an engine has one network class: `none` reaches
nothing, `egress` what its machine reaches. A run gets the engine of its class or is refused.
"""

from __future__ import annotations

from typing import Final, Literal

from sandkasten.errors import UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.images.pull_rules import PullMode  # noqa: TC001  (a field)
from sandkasten.model.sandbox.network_limits import Allowance, NetworkLimits
from sandkasten.model.sandbox.network_policy import NetworkPolicy  # noqa: TC001

EngineMode = Literal["auto", "docker_socket", "sidecar", "remote"]
ENGINE_MODES: Final[tuple[EngineMode, ...]] = ("auto", "docker_socket", "sidecar", "remote")
NetworkClass = Literal["none", "egress"]
NETWORK_CLASSES: Final[tuple[NetworkClass, ...]] = ("none", "egress")
VERSION: Final = "0.21.8"
"""The version of library, CLI and engine that this backend is tested with."""
_OTHER: Final = "use backend local, oci, gvisor or docker"


@dataclass(frozen=True, slots=True)
class DaggerOptions:
    engines: tuple[tuple[NetworkClass, str], ...] = ()
    """The address of the engine of each network class that has one."""
    cli: str = "dagger"
    """The program `dagger`: a path, or a name in PATH."""
    python: str = ""
    """The interpreter of an environment that has dagger-io; empty: this process's own."""
    mode: EngineMode = "auto"
    pull: PullMode = "named"
    timeout_s: float = 600.0
    """How long an engine may take to start, to get an image, and to start a run."""

    def address(self, network: NetworkClass) -> str | None:
        return dict(self.engines).get(network)


def network_class(policy: NetworkPolicy) -> NetworkClass:
    return "none" if policy.closed else "egress"


def network_refusal(policy: NetworkPolicy, options: DaggerOptions) -> UnsupportedByBackend | None:
    """Return the error for a network that no engine has; None if there is an engine for it."""
    wanted = network_class(policy)
    if options.address(wanted) is None:
        what = "a run without a network" if wanted == "none" else "a run with a network"
        return _refused(
            f"has no engine for {what}",
            f"set backends.dagger.engines.{wanted} to the address of an engine of that class "
            f"(docs/guides/dagger.md), or {_OTHER}",
        )
    if wanted == "none":
        return None
    if not policy.full or policy.deny or policy.dry_run or policy.inspected:
        return _refused(
            "does not support rules, secrets and inspection of a network",
            f"request network: full, or {_OTHER}",
        )
    if policy.limits != NetworkLimits() or policy.allowance not in (None, Allowance()):
        return _refused(
            "does not limit what a run sends and receives, and a limit is set: by the request, "
            "network.limits or the tenant's quota",
            _OTHER,
        )
    return None


def _refused(what: str, hint: str) -> UnsupportedByBackend:
    return UnsupportedByBackend(f"backend dagger {what}", hint=hint, field="network")
