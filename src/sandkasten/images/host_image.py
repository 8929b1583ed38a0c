"""The host image: the machine's own /usr, read-only, as the root of a sandbox.

Answers `host`, and the aliases for which this machine has the program; an image asked for by
its full name is never replaced by it. The allow-list is looked at before anything else.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.errors import InvalidImage, PolicyDenied
from sandkasten.images.image_names import ALIASES, HOST, canonical_name, chain, checked_name
from sandkasten.model.images.resolved_image import Image, Lookup
from sandkasten.model.sandbox.cell_spec import DEFAULT_PATH

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

_PROGRAMS = {
    "python": ("python3", "python3"),
    "node": ("node", "nodejs"),
    "linux": ("bash", "bash"),
    "bash": ("bash", "bash"),
    "shell": ("bash", "bash"),
    "base": ("sh", "dash"),
}


class HostImages:
    """Implements `ports.ImageSource`. `usr` is where the host's programs are looked for."""

    def __init__(
        self,
        *,
        allowed: Sequence[str] | None = None,
        strict: bool = False,
        usr: Path = Path("/usr"),
        aliases: Mapping[str, str] = ALIASES,
    ) -> None:
        self._allowed = None if allowed is None else tuple(allowed)
        self._strict = strict
        self._usr = usr
        self._aliases = aliases

    async def resolve(self, name: str) -> Image:
        meant = self.check(name)
        return Image(HOST) if name == HOST else self.instead_of(meant)

    async def look_up(self, name: str, *, fetch: bool = False) -> Lookup:
        meant = self.check(name)
        return Lookup(self.candidates(meant), Image(HOST) if meant[-1] == HOST else None)

    def candidates(self, meant: Sequence[str], own: Container[str] = ()) -> tuple[str, ...]:
        """Where to look, first to last. Only the operator's word (`own`) hides a very name."""
        if len(meant) == 1:
            return (meant[0],)
        # A name that is allowed for what it stands for does not let in an image called like it.
        if meant[0] in own or not self.listed(meant[0]):
            return (meant[-1],)
        return (meant[0], meant[-1])

    def check(self, name: object) -> tuple[str, ...]:
        """The name and what it stands for, step by step; InvalidImage or PolicyDenied."""
        meant = self.meaning(name)
        # An alias and what it stands for are the same image to an operator.
        if self._allowed is not None and not any(self.listed(one) for one in meant):
            raise PolicyDenied(
                f"image {name} is not on the allow-list",
                hint=f"allowed_images: {', '.join(self._allowed) or '(empty)'}",
                image=str(name),
            )
        return meant

    def listed(self, name: str) -> bool:
        """Whether the allow-list has this very name; everything is, where there is none."""
        if self._allowed is None:
            return True
        return canonical_name(name) in {canonical_name(one) for one in self._allowed}

    def meaning(self, name: object) -> tuple[str, ...]:
        """What a name stands for, whatever the allow-list says."""
        return chain(checked_name(name), self._aliases)

    def instead_of(self, meant: Sequence[str]) -> Image:
        """The host image in place of an alias whose target is nowhere to be had."""
        name, target = meant[0], meant[-1]
        if target == HOST:
            return Image(HOST)
        if len(meant) == 1:
            raise InvalidImage(
                f"image {name} is not in the store",
                hint="import it (sandkasten image import), or use one of: "
                + ", ".join((HOST, *self._aliases)),
                image=name,
            )
        if self._strict:
            raise InvalidImage(
                f"image {name} stands for {target}, which is not in the store",
                hint="images.strict forbids the host image in its place; say host to mean it",
                image=name,
            )
        known = next((one for one in reversed(meant) if one in _PROGRAMS), None)
        if known is None:
            raise InvalidImage(
                f"image {name} stands for {target}, which is not in the store",
                hint="import it (sandkasten image import)",
                image=name,
            )
        program, package = _PROGRAMS[known]
        if not self._has(program):
            raise InvalidImage(
                f"image {name} stands for {target}, which is not in the store, "
                f"and this machine has no {program} under {self._usr}",
                hint=f"install {package} on the host (apt-get install {package})",
                image=name,
            )
        return Image(HOST, warning=f"alias {name} ({target}) answered by the host image")

    def _has(self, program: str) -> bool:
        for directory in DEFAULT_PATH.split(":"):
            # /bin and /sbin are /usr/bin and /usr/sbin inside, whatever they are here.
            relative = directory.removeprefix("/usr").strip("/")
            path = self._usr / relative / program
            # A link that leads out of /usr (to a home, to /opt) leads nowhere inside.
            if os.access(path, os.X_OK) and path.resolve().is_relative_to(self._usr.resolve()):
                return True
        return False
