"""A root file system that an image name was resolved to."""

from __future__ import annotations

from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Image:
    """A resolved image.

    `kind` host: the machine's own /usr, read-only. `layers`: image layers, lowest first. `engine`:
    an image that only the backend has, under this name.
    """

    name: str
    kind: Literal["host", "layers", "engine"] = "host"
    layers: tuple[str, ...] = ()
    """Absolute paths of unpacked trees on this machine, ready to be laid over one another.

    The last one is our own skeleton: the directories that are mounted over, and an /etc/passwd
    that knows the sandbox's user. That of a step of a build has no accounts.
    """
    id: str = ""
    """`sha256:…`: the same content has the same id; empty for the host image. Of an image that
    only the backend has, it is the backend's own."""
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    home_is_free: bool = False
    """Whether /home/user, the home of programs for E2B, is ours to mount: of `layers`, the skeleton
    has an empty directory there, because the image has nothing of that name."""
    warning: str = ""
    """Shown to the caller if the requested name was answered by something else."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """What an image name means here, before any fallback."""

    names: tuple[str, ...]
    """Where to look for it, first to last; what the operator does not allow is left out."""
    image: Image | None = None
    """What the store has under the first of them that it has; the host's where that is meant."""
    in_full: bool = False
    """Whether the request named it in full, in a registry that requests may use."""
    fetchable: bool = False
    """Whether a missing one may be fetched."""
    signed: bool = False
    """Whether it needs a signature, which only the store can check."""
