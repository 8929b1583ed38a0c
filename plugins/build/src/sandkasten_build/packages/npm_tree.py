"""Resolve npm packages: which versions are needed, and in which directory each goes.

Pure except for `look_up`, which returns a registry's metadata. Raises ProvisioningFailed with the
package at fault and its dependents. Registry data is untrusted: names become paths, so every one is
checked.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import ProvisioningFailed
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.package_sets import npm_range, package_name
from sandkasten.model.spelling import shown
from sandkasten_build.packages.semver import Range, parse_version

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    Json = Mapping[str, Any]
    LookUp = Callable[[Iterable[str]], Awaitable[Mapping[str, Json | None]]]
    """What the registry has under these names; None for one that it does not know."""

MAX_PLACED: Final = 5000
_NAME: Final = re.compile(r"(?:@[a-zA-Z0-9~-][a-zA-Z0-9._~-]*/)?[a-zA-Z0-9~][a-zA-Z0-9._~-]*\Z")
_PROGRAM: Final = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]*\Z")

Location = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """The platform of the image's node, in npm's terms."""

    os: str
    cpu: str
    libc: str


@dataclass(frozen=True, slots=True)
class Placed:
    location: Location
    name: str
    """Its name in the registry; an alias may have given it another directory."""
    version: str
    manifest: Json = field(repr=False)
    optional: bool = False
    """Whether its dependent works without it."""

    @property
    def path(self) -> str:
        """Path below the outermost node_modules."""
        return "/node_modules/".join(self.location)

    @property
    def programs(self) -> dict[str, str]:
        declared = self.manifest.get("bin")
        if isinstance(declared, str):
            declared = {self.name.rpartition("/")[2]: declared}
        if not isinstance(declared, dict):
            return {}
        return {
            name: path
            for name, path in declared.items()
            if _PROGRAM.match(str(name)) and isinstance(path, str)
        }


@dataclass(frozen=True, slots=True)
class _Need:
    by: Location
    directory: str
    name: str
    range: str
    optional: bool = False
    peer: bool = False

    def __str__(self) -> str:
        return f"{self.name}@{self.range}" + (f" (for {' > '.join(self.by)})" if self.by else "")


async def resolve(specs: Sequence[str], machine: Machine, look_up: LookUp) -> list[Placed]:
    """Resolve level by level, so that a package's own dependencies are placed before theirs.

    One version of a package goes to the top; another goes into the directory of its dependent.
    Each level is decided in a thread: a package may have thousands of versions.
    """
    placed: dict[Location, Placed] = {}
    level = [
        _Need((), package_name("npm", spec), package_name("npm", spec), npm_range(spec))
        for spec in specs
    ]
    packuments: dict[str, Json | None] = {}
    while level:
        packuments |= await look_up({need.name for need in level} - packuments.keys())
        further = await asyncio.to_thread(_place_level, level, placed, packuments, machine)
        if len(placed) > MAX_PLACED:
            raise ProvisioningFailed(
                f"{', '.join(specs)} need more than {MAX_PLACED} packages", hint="request less"
            )
        level = further
    return list(placed.values())


def _place_level(
    level: Sequence[_Need],
    placed: dict[Location, Placed],
    packuments: Mapping[str, Json | None],
    machine: Machine,
) -> list[_Need]:
    """Add the packages of one level to `placed`; return what they need."""
    further: list[_Need] = []
    for need in level:
        package = _place(need, placed, packuments[need.name], machine)
        if package is not None:
            placed[package.location] = package
            further += _needs_of(package)
    return further


def _place(
    need: _Need, placed: Mapping[Location, Placed], packument: Json | None, machine: Machine
) -> Placed | None:
    """Return None if there is nothing to add: it is present already, or optional."""
    there = _seen_from(need, placed)
    if there is not None and _satisfied(need, there, packument):
        return None
    if there is not None and need.peer:
        raise _failed(
            need,
            f"{there.name} {there.version} is already installed, and only one version is possible",
        )
    manifest = None if packument is None else _pick(need, packument)
    if manifest is None or not _fits(manifest, machine):
        if need.optional:
            return None
        if manifest is not None:
            raise _failed(need, f"it is not made for {machine.os} on {machine.cpu}")
        raise _failed(need, "the registry has no such package or version")
    location = (*need.by, need.directory) if (need.directory,) in placed else (need.directory,)
    if location in placed:
        raise _failed(need, f"{placed[location].version} is required in the same directory")
    by = placed.get(need.by)
    optional = need.optional or (by is not None and by.optional)
    return Placed(location, need.name, str(manifest["version"]), manifest, optional)


def _seen_from(need: _Need, placed: Mapping[Location, Placed]) -> Placed | None:
    for depth in range(len(need.by), -1, -1):
        package = placed.get((*need.by[:depth], need.directory))
        if package is not None:
            return package
    return None


def _satisfied(need: _Need, there: Placed, packument: Json | None) -> bool:
    if there.name != need.name:
        return False
    wanted, version = Range.parse(need.range), parse_version(there.version)
    if wanted is not None and version is not None:
        return wanted.holds(version)
    return packument is not None and _tags(packument).get(need.range) == there.version


def _pick(need: _Need, packument: Json) -> Json | None:
    versions = packument.get("versions")
    if not isinstance(versions, dict):
        return None
    tagged = _tags(packument).get(need.range)
    if tagged is not None:
        return _manifest(versions, tagged)
    wanted = Range.parse(need.range)
    if wanted is None:
        raise _failed(need, "it is neither a version nor a tag; URLs and paths are not supported")
    latest = _tags(packument).get("latest")
    newest = parse_version(latest) if latest is not None else None
    if newest is not None and wanted.holds(newest) and newest.text in versions:
        return _manifest(versions, newest.text)
    parsed = [version for text in versions if (version := parse_version(text)) is not None]
    sound = [
        version
        for version in parsed
        if not (_manifest(versions, version.text) or {}).get("deprecated")
    ]
    best = wanted.best(sound) or wanted.best(parsed)
    return None if best is None else _manifest(versions, best.text)


def _manifest(versions: Json, text: str) -> Json | None:
    manifest = versions.get(text)
    return manifest if isinstance(manifest, dict) and manifest.get("version") == text else None


def _tags(packument: Json) -> dict[str, str]:
    tags = packument.get("dist-tags")
    if not isinstance(tags, dict):
        return {}
    return {name: to for name, to in tags.items() if isinstance(to, str)}


def _fits(manifest: Json, machine: Machine) -> bool:
    properties = (("os", machine.os), ("cpu", machine.cpu), ("libc", machine.libc))
    return all(_listed(manifest.get(name), value) for name, value in properties)


def _listed(allowed: object, value: str) -> bool:
    names = [allowed] if isinstance(allowed, str) else allowed
    if not isinstance(names, list) or not names or not value:
        return True
    if f"!{value}" in names:
        return False
    wanted = [name for name in names if not str(name).startswith("!")]
    return not wanted or value in wanted or "any" in wanted


def _needs_of(package: Placed) -> Iterator[_Need]:
    manifest = package.manifest
    bundled = manifest.get("bundleDependencies") or manifest.get("bundledDependencies") or ()
    optional = _mapping(manifest, "optionalDependencies")
    plain = _mapping(manifest, "dependencies")
    if bundled is True:
        bundled = tuple(plain)
    for directory, range_ in plain.items():
        if directory not in optional and directory not in bundled:
            yield _need(package, directory, range_)
    for directory, range_ in optional.items():
        yield _need(package, directory, range_, optional=True)
    meta = _mapping(manifest, "peerDependenciesMeta")
    for directory, range_ in _mapping(manifest, "peerDependencies").items():
        about = meta.get(directory)
        if not (isinstance(about, dict) and about.get("optional")) and directory not in plain:
            yield _need(package, directory, range_, peer=True)


def _need(
    package: Placed, directory: str, range_: object, *, optional: bool = False, peer: bool = False
) -> _Need:
    text = str(range_).strip()
    name = directory
    if text.startswith("npm:"):
        name, at, text = text.removeprefix("npm:").rpartition("@")
        if not name:
            name, text = at + text, "latest"
    need = _Need(package.location, directory, name, text or "*", optional, peer)
    for candidate in (directory, name):
        if len(candidate) > 214 or not _NAME.match(candidate):
            raise _failed(need, f"{shown(candidate)} is not a valid package name")
    return need


def _mapping(manifest: Json, name: str) -> dict[str, Any]:
    value = manifest.get(name)
    return value if isinstance(value, dict) else {}


def _failed(need: _Need, why: str) -> ProvisioningFailed:
    return ProvisioningFailed(
        f"npm package {str(need)[:300]} cannot be installed: {why}",
        hint="check the name and the version, and that packages.npm_registry has it",
        package=need.name[:214],
    )
