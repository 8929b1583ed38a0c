"""Names of images: canonical spelling and aliases. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.errors import InvalidConfiguration, InvalidImage
from sandkasten.model import lazy_pattern
from sandkasten.model.images.image_name import checked_name as checked_name
from sandkasten.model.images.image_name import is_id as is_id
from sandkasten.model.images.known_images import KNOWN_IMAGES
from sandkasten.model.sandbox.sandbox_values import HOST as HOST

if TYPE_CHECKING:
    from collections.abc import Mapping

_WHOLE_ID = lazy_pattern.compile(r"[0-9a-f]{64}\Z")
_HUB = lazy_pattern.compile(r"^(?:index\.|registry-1\.)?docker\.io/")

DEFAULT_TAG = "latest"
# The machine itself, and the prefix of an id.
_RESERVED = frozenset({HOST, "sha256"})
ALIASES: dict[str, str] = {
    "python": "python:3.11-slim",
    "node": "node:20-slim",
    "linux": "ubuntu:22.04",
    "bash": "ubuntu:22.04",
    "shell": "ubuntu:22.04",
    "base": "sandbox-runtime:base",
}
OWN_IMAGES = frozenset(name for name in KNOWN_IMAGES if name.startswith("sandbox-runtime:"))
"""Images that the operator builds (`images/`): no registry has them, so the host may stand in for
them as for an alias.
"""


def canonical_name(name: object) -> str:
    """Return the canonical spelling: with a tag, or with a digest and no tag.

    Docker's own registry and its `library` are left out, as people do. Hosts are lower case.
    """
    first, slash, rest = checked_name(name).partition("/")
    text = _HUB.sub("", f"{first.lower()}{slash}{rest}" if slash else first)
    if text.count("/") == 1:
        text = text.removeprefix("library/")
    text, at, digest = text.partition("@")
    # After the last slash: a colon before it belongs to a host's port.
    head, slash, last = text.rpartition("/")
    repository, _, tag = last.partition(":")
    if at:
        # A digest is more specific than any tag.
        return f"{head}{slash}{repository}@{digest}"
    return f"{head}{slash}{repository}:{tag or DEFAULT_TAG}"


def in_full(name: str) -> bool:
    """Return whether a name determines one image: it has a tag or a digest."""
    return not is_id(name) and ("@" in name or ":" in name.rpartition("/")[2])


def new_name(name: object) -> str:
    """Return the canonical form of a new name; refuse one that already means something else."""
    text = canonical_name(name)
    repository = text.partition(":")[0].partition("@")[0]
    # A name that looks like the id of another image would be taken for it.
    if repository in _RESERVED or _WHOLE_ID.match(repository):
        raise InvalidImage(f"{text} is a reserved image name", hint="choose another name")
    return text


def chain(name: str, aliases: Mapping[str, str]) -> tuple[str, ...]:
    """Return the targets of a name, step by step, itself first. Raise InvalidConfiguration for
    a loop.
    """
    steps = [name]
    while steps[-1] in aliases:
        target = aliases[steps[-1]]
        if target in steps:
            loop = " → ".join([*steps[steps.index(target) :], target])
            raise InvalidConfiguration(
                f"images.aliases contains a cycle: {loop}",
                hint="let one of these aliases name an image",
                setting="images.aliases",
            )
        steps.append(target)
    return tuple(steps)


def all_aliases(configured: Mapping[str, str]) -> dict[str, str]:
    """Return the usual aliases, overridden by the operator's; each of them leads to an image."""
    merged = {**ALIASES, **configured}
    for name, target in merged.items():
        checked_name(name)
        checked_name(target)
        if name == HOST:
            raise InvalidConfiguration(
                "images.aliases must not redefine host",
                hint="choose another name",
                setting="images.aliases",
            )
        chain(name, merged)
    return merged
