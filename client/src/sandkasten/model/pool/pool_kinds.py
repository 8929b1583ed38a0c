"""Kinds of sandboxes that the warm pool keeps ready, and which requests cannot use them. Pure.

A kind is a description of a sandbox without what a claim can still set: the environment, the
limits that the engine or a cgroup enforces, and the rules of an open network. An invalid kind in
the settings raises InvalidRequest.
"""

from __future__ import annotations

import hashlib
from dataclasses import field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from sandkasten.errors import InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.limit_names import public_limits
from sandkasten.model.sandbox.limits import Limits
from sandkasten.model.sandbox.network_policy import CLOSED, NetworkPolicy
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from sandkasten.model.sandbox.cell_spec import CellSpec

# Reaches nothing: the rules of a request are set when it claims the sandbox.
_UNCLAIMED_NETWORK: Final = NetworkPolicy(allow=("unclaimed.invalid",))
# Set when a sandbox is made: the size of its file systems and the limit of its descriptors.
_FIXED: Final = ("workspace_bytes", "tmp_bytes", "open_files")
# Also, where no cgroup can be changed.
_GROUP: Final = ("cpus", "memory_bytes", "pids")

_OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "profile": ("hardened", "dev"),
    "backend": (),
    "network": ("none", "full"),
}
_MOST: Final = 1000
_HINT: Final = "write python, or python ready=4 profile=hardened backend=local network=none"

MissCode = Literal["off", "unusual", "limits", "not_ready", "failed"]


@dataclass(frozen=True, slots=True)
class PoolKind:
    """A kind that an operator lists, and how many of it are kept ready."""

    options: SandboxOptions = field(default_factory=SandboxOptions)
    ready: int = 1


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a request did not get a sandbox of the pool."""

    code: MissCode
    detail: str


def parse_pool_kind(text: str) -> PoolKind:
    """Parse an image and `key=value` words. Raise InvalidRequest."""
    image, *words = text.split() or [""]
    if not image or "=" in image:
        raise InvalidRequest("a kind must begin with an image", hint=_HINT)
    options: dict[str, str] = {}
    ready = 1
    for word in words:
        key, _, value = word.partition("=")
        if key == "ready" and value.isascii() and value.isdigit() and 1 <= int(value) <= _MOST:
            ready = int(value)
        elif key in _OPTIONS and value in (_OPTIONS[key] or (value,)) and value:
            options[key] = value
        else:
            raise InvalidRequest(
                f"{shown(word)} is not a valid option of a kind",
                hint=_HINT,
            )
    return PoolKind(SandboxOptions(image=image, **options), ready)  # type: ignore[arg-type]


def pool_kind_text(kind: PoolKind) -> str:
    """Return the text that `parse_pool_kind` parses."""
    words = [str(kind.options.image), f"ready={kind.ready}"]
    for key in _OPTIONS:
        value = getattr(kind.options, key)
        if value is not None:
            words.append(f"{key}={value}")
    return " ".join(words)


def pooled_spec(spec: CellSpec, *, resizable: bool) -> CellSpec:
    """Return the kind of a spec. `resizable`: its cgroup limits can be changed later."""
    names = _FIXED if resizable else (*_FIXED, *_GROUP)
    limits = {name: getattr(spec.limits, name) for name in names}
    return replace(
        spec,
        # The name of the request does not make another kind.
        image=replace(spec.image, warning=""),
        env=MappingProxyType({}),
        limits=replace(Limits(), **limits),
        network=CLOSED if spec.network.closed else _UNCLAIMED_NETWORK,
    )


def unusual(spec: CellSpec, *, named_workspace: bool, fixed_network: bool = False) -> str:
    """Return what keeps a request from every pooled sandbox; empty if nothing does.

    `fixed_network`: the network of a sandbox cannot be changed after it was made.
    """
    if named_workspace:
        return "named workspace"
    if spec.files is not None:
        return "snapshot"
    if spec.gpus is not None:
        return "GPUs"
    if any(not mount.content for mount in spec.mounts):
        return "host mounts"
    if spec.inspection is not None:
        return "network with secrets or inspection"
    if fixed_network and not spec.network.closed:
        return "network that cannot be changed"
    return ""


def differing_limits(wanted: CellSpec, pooled: CellSpec) -> tuple[str, ...]:
    """Return the public names of the limits in which a kind differs, if nothing else does."""
    if replace(wanted, limits=pooled.limits) != pooled:
        return ()
    wanted_limits, pooled_limits = public_limits(wanted.limits), public_limits(pooled.limits)
    return tuple(name for name in wanted_limits if wanted_limits[name] != pooled_limits[name])


def kind_digest(backend: str, spec: CellSpec, runtime: str | None, version: str) -> str:
    """Return what identifies a kind in the ledger, for a later process of the same version.

    `runtime` is the one whose interpreter waits in the sandbox.
    """
    return hashlib.sha256(repr((backend, version, runtime, spec)).encode()).hexdigest()
