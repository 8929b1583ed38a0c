"""The host image: the machine's own /usr, read-only, as the root of a sandbox.

Serves `host` and the aliases for which this machine has the program; it never replaces an image
requested by its full name. The allow-list is checked first.
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
        """Return the names to try, in order. Only an operator's alias (`own`) hides an exact
        name.
        """
        if len(meant) == 1:
            return (meant[0],)
        # An alias that is allowed because of its target does not admit an image of the same name.
        if meant[0] in own or not self.listed(meant[0]):
            return (meant[-1],)
        return (meant[0], meant[-1])

    def check(self, name: object) -> tuple[str, ...]:
        """Check the name and its targets, step by step. Raise InvalidImage or PolicyDenied."""
        meant = self.meaning(name)
        # To an operator, an alias and its target are the same image.
        if self._allowed is not None and not any(self.listed(one) for one in meant):
            raise PolicyDenied(
                f"image {name} is not on the allow-list",
                hint=f"allowed_images: {', '.join(self._allowed) or '(empty)'}",
                image=str(name),
            )
        return meant

    def listed(self, name: str) -> bool:
        """Return whether the allow-list has this exact name; True if there is no list."""
        if self._allowed is None:
            return True
        return canonical_name(name) in {canonical_name(one) for one in self._allowed}

    def meaning(self, name: object) -> tuple[str, ...]:
        """Return the target of a name, whatever the allow-list says."""
        return chain(checked_name(name), self._aliases)

    def instead_of(self, meant: Sequence[str]) -> Image:
        """Return the host image in place of an alias whose target is not available."""
        name, target = meant[0], meant[-1]
        if target == HOST:
            return Image(HOST)
        if len(meant) == 1:
            raise InvalidImage(
                f"image {name} is not in the store",
                hint="get it with sandkasten image pull or image import, or use one of: "
                + ", ".join((HOST, *self._aliases)),
                image=name,
            )
        if self._strict:
            raise InvalidImage(
                f"image {name} is an alias of {target}, which is not in the store",
                hint="images.strict does not allow the host image instead; to use it, name host",
                image=name,
            )
        known = next((one for one in reversed(meant) if one in _PROGRAMS), None)
        if known is None:
            raise InvalidImage(
                f"image {name} is an alias of {target}, which is not in the store",
                hint="import it (sandkasten image import)",
                image=name,
            )
        program, package = _PROGRAMS[known]
        if not self._has(program):
            raise InvalidImage(
                f"image {name} is an alias of {target}, which is not in the store, "
                f"and this machine has no {program} under {self._usr}",
                hint=f"install {package} on the host (apt-get install {package})",
                image=name,
            )
        return Image(HOST, warning=f"alias {name} ({target}) resolved to the host image")

    def _has(self, program: str) -> bool:
        for directory in DEFAULT_PATH.split(":"):
            # /bin and /sbin are /usr/bin and /usr/sbin inside, whatever they are here.
            relative = directory.removeprefix("/usr").strip("/")
            path = self._usr / relative / program
            # A link that leads out of /usr (to a home, to /opt) is broken inside.
            if os.access(path, os.X_OK) and path.resolve().is_relative_to(self._usr.resolve()):
                return True
        return False
