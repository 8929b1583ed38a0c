"""Settings `backends.dagger.*`: the engines and how to reach them, checked for contradictions.

Contacts no engine and starts no program; the backend does, and `doctor`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit

from sandkasten.backends.dagger.dagger_options import (
    ENGINE_MODES,
    VERSION,
    DaggerOptions,
    EngineMode,
    NetworkClass,
)
from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.addresses import is_loopback
from sandkasten.model.images.pull_rules import PULL_MODES
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import boolean, choice, invalid, seconds, string

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.images.pull_rules import PullMode
    from sandkasten.settings.setting_fields import Origin

_ENGINES: Final = tuple(f"+{one}" for one in ("docker", "podman", "nerdctl", "finch", "apple"))
# Engines that the CLI finds, or starts, through a container engine of this machine.
_CONTAINER: Final = tuple(
    f"{kind}{engine}" for kind in ("container", "image") for engine in ("", *_ENGINES)
)
_SIDECAR: Final = ("unix", "tcp")
_REMOTE: Final = ("tcp", "tls", "ssh", "kube-pod", "dagger-cloud")
_SCHEMES: Final = {*_CONTAINER, *_SIDECAR, *_REMOTE}
_ADDRESSES: Final = (
    "write unix:///run/dagger/engine.sock, tcp://host:port, tls://host:port, ssh://user@host, "
    "kube-pod://pod?namespace=name or container+docker://name"
)
# What the CLI of this version starts by itself where it is given no address.
_OWN_ENGINE: Final = f"image+docker://registry.dagger.io/engine:v{VERSION}"


_FOREIGN: Final = "DAGGER_HOST"


def engine_address(name: str, value: object) -> str:
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
class DaggerSettings:
    none: str | None = setting(
        "backends.dagger.engines.none",
        engine_address,
        None,
        "The Dagger Engine for runs without a network; its containers must reach nothing.",
        aliases=(_FOREIGN,),
    )
    egress: str | None = setting(
        "backends.dagger.engines.egress",
        engine_address,
        None,
        "The Dagger Engine for runs with a network.",
    )
    engine_mode: EngineMode = setting(
        "backends.dagger.engine_mode",
        choice(*ENGINE_MODES),
        "auto",
        "Where the Dagger Engines must be: docker_socket, sidecar, remote or auto (anywhere).",
        aliases=("STATION_SANDBOX_ENGINE_MODE",),
    )
    cli: str = setting(
        "backends.dagger.cli",
        string,
        DaggerOptions().cli,
        f"The program dagger {VERSION}: its path, or its name in PATH.",
        aliases=("_EXPERIMENTAL_DAGGER_CLI_BIN",),
    )
    python: str | None = setting(
        "backends.dagger.python",
        string,
        None,
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
        DaggerOptions().pull,
        "Whether a Dagger Engine pulls a missing image: never, named, missing or always.",
    )
    timeout_s: float = setting(
        "backends.dagger.timeout_seconds",
        seconds,
        DaggerOptions().timeout_s,
        "How long a Dagger Engine may take to answer, beside the time of the code.",
    )

    def options(self, origins: Mapping[str, Origin], *, default: bool) -> DaggerOptions:
        """Raise InvalidConfiguration. `default`: whether dagger is the default backend."""
        engines: list[tuple[NetworkClass, str]] = []
        foreign = origins["backends.dagger.engines.none"].origin == f"env {_FOREIGN}"
        if self.none is not None and (default or not foreign):
            engines.append(("none", checked_address(_FOREIGN, self.none)))
        if self.egress is not None:
            engines.append(("egress", self.egress))
        if default and not engines:
            if self.engine_mode != "docker_socket":
                raise _contradiction(
                    "no Dagger Engine is configured, and dagger is the default backend",
                    "set backends.dagger.engines.none to the address of an engine without a "
                    "network; see docs/guides/dagger.md",
                )
            engines.append(("egress", _OWN_ENGINE))
        for network, address in engines:
            self._check(network, urlsplit(address))
        if len({address for _, address in engines}) < len(engines):
            raise _contradiction(
                "engines.none and engines.egress are the same engine",
                "start an engine of each network class; see docs/guides/dagger.md",
            )
        return DaggerOptions(
            engines=tuple(engines),
            cli=self.cli,
            python=self.python or "",
            mode=self.engine_mode,
            pull=self.pull,
            timeout_s=self.timeout_s,
        )

    def _check(self, network: NetworkClass, split: SplitResult) -> None:
        mode, scheme = self.engine_mode, split.scheme
        allowed = {"docker_socket": _CONTAINER, "sidecar": _SIDECAR, "remote": _REMOTE}.get(mode)
        if allowed is not None and scheme not in allowed:
            raise _contradiction(
                f"engine_mode is {mode}, but engines.{network} is {scheme}://",
                f"use one of {', '.join(f'{one}://' for one in allowed)}, or engine_mode: auto",
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
