"""Options of the backend dagger: its engines and how to reach them, checked for contradictions.

Dagger has no network switch for one command, so an engine has one network class: `none` reaches
nothing, `egress` what its machine reaches. A run gets the engine of its class or is refused.
Contacts no engine and starts no program; the backend does, and `doctor`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import SplitResult, urlsplit

from sandkasten.errors import InvalidConfiguration, UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.addresses import is_loopback
from sandkasten.model.images.pull_rules import PULL_MODES
from sandkasten.model.sandbox.network_limits import Allowance, NetworkLimits
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import boolean, choice, invalid, seconds, string

if TYPE_CHECKING:
    from sandkasten.model.images.pull_rules import PullMode
    from sandkasten.model.sandbox.network_policy import NetworkPolicy
    from sandkasten.ports.backend_plugins import SettingContext

DaggerMode = Literal["auto", "docker_socket", "sidecar", "remote"]
DAGGER_MODES: Final[tuple[DaggerMode, ...]] = ("auto", "docker_socket", "sidecar", "remote")
NetworkClass = Literal["none", "egress"]
VERSION: Final = "0.21.8"
"""The version of library, CLI and engine that this backend is tested with."""
_CONTAINER_ENGINES: Final = tuple(
    f"+{name}" for name in ("docker", "podman", "nerdctl", "finch", "apple")
)
# Engines that the CLI finds, or starts, through a container engine of this machine.
_CONTAINER: Final = tuple(
    f"{kind}{container_engine}"
    for kind in ("container", "image")
    for container_engine in ("", *_CONTAINER_ENGINES)
)
_SIDECAR: Final = ("unix", "tcp")
_REMOTE: Final = ("tcp", "tls", "ssh", "kube-pod", "dagger-cloud")
_SCHEMES: Final = {*_CONTAINER, *_SIDECAR, *_REMOTE}
_ADDRESSES: Final = (
    "write unix:///run/dagger/engine.sock, tcp://host:port, tls://host:port, ssh://user@host, "
    "kube-pod://pod?namespace=name or container+docker://name"
)
# What the CLI of this version starts by itself where it is given no address.
_OWN_DAGGER_ENGINE: Final = f"image+docker://registry.dagger.io/engine:v{VERSION}"


_FOREIGN: Final = "DAGGER_HOST"
_OTHER: Final = "use backend local, oci, gvisor or docker"


def dagger_address(name: str, value: object) -> str:
    """Accept an address. A variable of other programs is looked at when it is used."""
    url = string(name, value)
    return url if name == _FOREIGN else checked_address(name, url)


def checked_address(name: str, url: str) -> str:
    try:
        split = urlsplit(url)
    except ValueError as exc:
        raise invalid(name, "a URL", url, _ADDRESSES) from exc
    named = split.netloc or (split.scheme == "unix" and split.path.startswith("/"))
    if split.scheme not in _SCHEMES or not named or not url.isprintable() or " " in url:
        raise InvalidConfiguration(
            f"{name} must be the address of a Dagger Engine, got {url[:80]!r}",
            hint=_ADDRESSES,
            setting=name,
        )
    if split.password is not None:
        raise invalid(name, "a URL without a password", split.scheme, _ADDRESSES)
    return url


@dataclass(frozen=True, slots=True)
class DaggerOptions:
    none: str = setting(
        "backends.dagger.engines.none",
        dagger_address,
        "",
        "The Dagger Engine for runs without a network; its containers must reach nothing.",
        aliases=(_FOREIGN,),
    )
    egress: str = setting(
        "backends.dagger.engines.egress",
        dagger_address,
        "",
        "The Dagger Engine for runs with a network.",
    )
    mode: DaggerMode = setting(
        "backends.dagger.engine_mode",
        choice(*DAGGER_MODES),
        "auto",
        "Where the Dagger Engines must be: docker_socket, sidecar, remote or auto (anywhere).",
        shared_aliases=("STATION_SANDBOX_ENGINE_MODE",),
    )
    cli: str = setting(
        "backends.dagger.cli",
        string,
        "dagger",
        f"The program dagger {VERSION}: its path, or its name in PATH.",
        aliases=("_EXPERIMENTAL_DAGGER_CLI_BIN",),
    )
    python: str = setting(
        "backends.dagger.python",
        string,
        "",
        "The interpreter of an environment that has dagger-io; default: the daemon's own.",
    )
    insecure: bool = setting(
        "backends.dagger.insecure",
        boolean,
        False,
        "Whether plain tcp to another machine is allowed.",
    )
    pull: PullMode = setting(
        "backends.dagger.pull",
        choice(*PULL_MODES),
        "named",
        "Whether a Dagger Engine pulls a missing image: never, named, missing or always.",
    )
    timeout_s: float = setting(
        "backends.dagger.timeout_seconds",
        seconds,
        600.0,
        "How long a Dagger Engine may take to answer, beside the time of the code.",
    )

    @property
    def dagger_engines(self) -> dict[NetworkClass, str]:
        """Return the address of the engine of each network class that has one."""
        addresses: dict[NetworkClass, str] = {"none": self.none, "egress": self.egress}
        return {network: address for network, address in addresses.items() if address}

    def completed(self, context: SettingContext) -> DaggerOptions:
        default = context.default_backend == "dagger"
        none, egress = self.none, self.egress
        foreign = context.origins["backends.dagger.engines.none"].origin == f"env {_FOREIGN}"
        if foreign and not default:
            none = ""
        elif none:
            checked_address(_FOREIGN, none)
        if default and not none and not egress:
            if self.mode != "docker_socket":
                raise _contradiction(
                    "no Dagger Engine is configured, and dagger is the default backend",
                    "set backends.dagger.engines.none to the address of an engine without a "
                    "network; see docs/guides/dagger.md",
                )
            egress = _OWN_DAGGER_ENGINE
        options = replace(self, none=none, egress=egress)
        for network, address in options.dagger_engines.items():
            options._check(network, urlsplit(address))
        if none and none == egress:
            raise _contradiction(
                "engines.none and engines.egress are the same engine",
                "start an engine of each network class; see docs/guides/dagger.md",
            )
        return options

    def _check(self, network: NetworkClass, split: SplitResult) -> None:
        mode, scheme = self.mode, split.scheme
        allowed = {"docker_socket": _CONTAINER, "sidecar": _SIDECAR, "remote": _REMOTE}.get(mode)
        if allowed is not None and scheme not in allowed:
            raise _contradiction(
                f"engine_mode is {mode}, but engines.{network} is {scheme}://",
                f"use one of {', '.join(f'{name}://' for name in allowed)}, or engine_mode: auto",
            )
        private = mode == "sidecar" or is_loopback(split.hostname or "")
        if scheme == "tcp" and not (private or self.insecure):
            raise _contradiction(
                f"plain tcp to {split.hostname} is not allowed: any machine in between could take "
                "over the Dagger Engine",
                "use tls://, ssh:// or kube-pod://, engine_mode: sidecar for an engine beside this "
                "process, or backends.dagger.insecure: true on a private network",
            )


def _contradiction(what: str, hint: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"backends.dagger: {what}", hint=hint, setting="backends.dagger")


def network_class(policy: NetworkPolicy) -> NetworkClass:
    return "none" if policy.closed else "egress"


def network_refusal(policy: NetworkPolicy, options: DaggerOptions) -> UnsupportedByBackend | None:
    """Return the error for a network that no engine has; None if there is an engine for it."""
    wanted = network_class(policy)
    if wanted not in options.dagger_engines:
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
