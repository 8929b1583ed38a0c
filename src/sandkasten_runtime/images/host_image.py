"""The host image: the machine's own /usr, read-only, as the root of a sandbox.

Serves `host`, and the aliases and own images for which this machine has the program, if the
allow-list has `host` or the own image; it replaces no other image that is requested by its full
name. The allow-list is checked first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.errors import ImageNotFound, PolicyDenied, RegistryUnavailable
from sandkasten.model.images.known_images import KNOWN_IMAGES, known_image
from sandkasten.model.images.resolved_image import Image, Lookup
from sandkasten.model.sandbox.cell_spec import DEFAULT_PATH
from sandkasten.model.spelling import nearest
from sandkasten_runtime.images.image_names import (
    ALIASES,
    HOST,
    OWN_IMAGES,
    canonical_name,
    chain,
    checked_name,
    is_id,
)
from sandkasten_runtime.images.registry.image_reference import parse_reference

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

_PROGRAMS = {
    "python": ("python3", "python3"),
    "node": ("node", "nodejs"),
    "linux": ("bash", "bash"),
    "bash": ("bash", "bash"),
    "shell": ("bash", "bash"),
    "base": ("sh", "dash"),
    "sandbox-runtime:base": ("sh", "dash"),
    "sandbox-runtime:python": ("python3", "python3"),
    "sandbox-runtime:node": ("node", "nodejs"),
}
# A hint is one line.
_SHOWN_NAMES = 8


class HostImages:
    """Implements `ports.ImageSource`. `usr` is where the host's programs are looked for."""

    def __init__(
        self,
        *,
        allowed: Sequence[str] | None = None,
        strict: bool = False,
        usr: Path = Path("/usr"),
        aliases: Mapping[str, str] = ALIASES,
        stored: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`stored` returns the names of the images in the store, for hints."""
        self._stored = stored
        self._allowed = None if allowed is None else tuple(allowed)
        self._strict = strict
        self._usr = usr
        self._aliases = aliases

    async def resolve(self, name: str, *, fetch: bool = True) -> Image:
        targets = self.check(name)
        return Image(HOST) if name == HOST else self.instead_of(targets)

    async def look_up(self, name: str, *, fetch: bool = False) -> Lookup:
        targets = self.check(name)
        return Lookup(self.candidates(targets), Image(HOST) if targets[-1] == HOST else None)

    def candidates(self, targets: Sequence[str], own: Container[str] = ()) -> tuple[str, ...]:
        """Return the names to try, in order. Only an operator's alias (`own`) hides an exact
        name.
        """
        if len(targets) == 1:
            return (targets[0],)
        # An alias that is allowed because of its target does not admit an image of the same name.
        if targets[0] in own or not self.listed(targets[0]):
            return (targets[-1],)
        return (targets[0], targets[-1])

    def check(self, name: object) -> tuple[str, ...]:
        """Check the name and its targets, step by step. Raise InvalidImage or PolicyDenied."""
        targets = self.meaning(name)
        # To an operator, an alias and its target are the same image.
        if self._allowed is not None and not any(self.listed(target) for target in targets):
            raise PolicyDenied(
                f"image {name} is not on the allow-list",
                hint=self.usable(),
                image=str(name),
            )
        return targets

    def lists(self, name: str) -> bool:
        """Return whether there is an allow-list and it has this exact name."""
        return self._allowed is not None and self.listed(name)

    def listed(self, name: str) -> bool:
        """Return whether the allow-list has this exact name; True if there is no list."""
        if self._allowed is None:
            return True
        return canonical_name(name) in {canonical_name(allowed) for allowed in self._allowed}

    def meaning(self, name: object) -> tuple[str, ...]:
        """Return the target of a name, whatever the allow-list contains."""
        return chain(checked_name(name), self._aliases)

    def spellings(self, name: str, *more: str) -> tuple[str, ...]:
        """See `ports.SpellsImages`. `more` are further names of the image."""
        result: dict[str, None] = {}
        for candidate in (*self.meaning(name), *more):
            result[candidate] = None
            if candidate != HOST and not is_id(candidate):
                # A digest is part of the last path element, a port of the first.
                for spelled in (canonical_name(candidate), parse_reference(candidate).full):
                    result[spelled] = None
                    head, slash, last = spelled.partition("@")[0].rpartition("/")
                    result[f"{head}{slash}{last.partition(':')[0]}"] = None
        return tuple(result)

    def instead_of(self, targets: Sequence[str]) -> Image:
        """Return the host image in place of an own image, or of an alias whose target is not
        available.
        """
        name, target = targets[0], targets[-1]
        if target == HOST:
            return Image(HOST)
        own = target in OWN_IMAGES
        if len(targets) == 1 and not own:
            raise self.missing(targets)
        needed = _program_of(targets)
        if needed is None:
            raise self.missing(targets)
        if self._strict:
            raise self.missing(targets, ", and images.strict forbids the host image instead")
        if not self.listed(HOST) and not (own and self.listed(target)):
            raise self.missing(targets, ", and allowed_images does not list host")
        program, package = needed
        if not self._has(program):
            raise self.missing(
                targets,
                f", and this machine has no {program} under {self._usr}",
                f"install {package} on the host (apt-get install {package})",
            )
        what = f"alias {name} ({target})" if len(targets) > 1 else f"image {name}"
        return Image(HOST, warning=f"{what} resolved to the host image")

    def missing(self, targets: Sequence[str], why: str = "", *remedies: str) -> ImageNotFound:
        """Return the error for an image that is not there; the hint names what can be used."""
        name, target = targets[0], targets[-1]
        stored = self._stored() if self._allowed is None else ()
        names = tuple(text.removesuffix(":latest") for text in stored)
        buildable = known_image(target)
        near = nearest(
            name,
            (HOST, *self._aliases, *KNOWN_IMAGES, *names)
            if self._allowed is None
            else self._allowed,
        )
        if near == name:
            near = None
        if len(targets) == 1 and near is not None:
            remedies = (f"did you mean {near}?", *remedies)
        stands_for = f"is an alias of {target}, which is " if len(targets) > 1 else "is "
        if is_id(target):
            how = "list the images with sandkasten image ls"
        elif buildable is not None:
            how = f"build it with sandkasten image build {buildable}"
        else:
            how = f"get it with sandkasten image pull {target} or sandkasten image import"
        shown = (_shown_names(names),) if names else ()
        return ImageNotFound(
            f"image {name} {stands_for}not in the store{why}",
            hint="; ".join((*remedies, how, *shown, self.usable())),
            image=name,
        )

    def unreachable(self, targets: Sequence[str], why: str) -> RegistryUnavailable:
        """Return the error for a missing image whose registry cannot be reached."""
        name, target = targets[0], targets[-1]
        return RegistryUnavailable(
            f"image {name} is not in the store and could not be pulled: {why}",
            hint=f"on a machine that reaches the registry, run sandkasten image pull {target} and "
            f"sandkasten image export {target} FILE; then run sandkasten image import FILE here; "
            f"{self.usable()}",
            image=name,
        )

    def stands_in(self, targets: Sequence[str]) -> bool:
        """Return whether the host image can replace the target of this alias."""
        try:
            self.instead_of(targets)
        except ImageNotFound:
            return False
        return True

    def usable(self) -> str:
        """Return the names that a hint may suggest, as its last clause."""
        if self._allowed is not None:
            return f"allowed_images: {', '.join(self._allowed) or '(empty)'}"
        return "or use one of: " + ", ".join((HOST, *filter(self._falls_back, self._aliases)))

    def _falls_back(self, alias: str) -> bool:
        needed = _program_of(chain(alias, self._aliases))
        return needed is not None and not self._strict and self._has(needed[0])

    def _has(self, program: str) -> bool:
        for directory in DEFAULT_PATH.split(":"):
            # /bin and /sbin are /usr/bin and /usr/sbin inside, whatever they are here.
            relative = directory.removeprefix("/usr").strip("/")
            path = self._usr / relative / program
            # A link that leads out of /usr (to a home, to /opt) is broken inside.
            if os.access(path, os.X_OK) and path.resolve().is_relative_to(self._usr.resolve()):
                return True
        return False


def _shown_names(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN_NAMES
    text = ", ".join(names[:_SHOWN_NAMES])
    return f"in the store: {text} and {more} more" if more > 0 else f"in the store: {text}"


def _program_of(targets: Sequence[str]) -> tuple[str, str] | None:
    """Return the program that the host needs to stand in for an alias, and its package."""
    return next((_PROGRAMS[target] for target in reversed(targets) if target in _PROGRAMS), None)
