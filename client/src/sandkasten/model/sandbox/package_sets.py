"""Packages of a sandbox: how a request names them, and where they are visible inside.

Pure. A package has a name and at most a version: an option, a URL, a path or a marker is
InvalidRequest, because each of these makes an installer do something other than fetch that package.
PolicyDenied for what the operator does not allow.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal

from sandkasten.errors import InvalidRequest, PolicyDenied
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.model.field_patterns import NPM_PACKAGE, PIP_PACKAGE, form
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sandkasten.model.sandbox.cell_spec import HostMount

Ecosystem = Literal["pip", "npm"]

PYTHON_DIR: Final = "/opt/sandkasten/python"
# At the root, because node looks for node_modules in every directory above a file: this is the
# one place that both `require` and `import` find from anywhere.
NODE_DIR: Final = "/node_modules"
MOUNT_PREFIX: Final = "packages:"
"""How the mount of a set is called in a sandbox's record; no mount of an operator can be."""
MAX_PACKAGES: Final = 100
MAX_PACKAGE_NAME: Final = 200

_PIP: Final = form(PIP_PACKAGE)
_NPM: Final = form(NPM_PACKAGE)
# pip takes a name with such an end for a file of the directory it stands in.
_ARCHIVE: Final = lazy_pattern.compile(
    r"\.(?:whl|zip|tar|tgz|tbz|txz|gz|bz2|xz|lzma)\Z", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Packages:
    """Checked packages, sorted and without repetitions: equal requests are equal values."""

    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.pip or self.npm)

    @property
    def ecosystems(self) -> tuple[tuple[Ecosystem, tuple[str, ...]], ...]:
        both: tuple[tuple[Ecosystem, tuple[str, ...]], ...] = (("pip", self.pip), ("npm", self.npm))
        return tuple(entry for entry in both if entry[1])


@dataclass(frozen=True, slots=True)
class PackageSet:
    """One installed set: where it is on the host, where a sandbox sees it, and its variable."""

    key: str
    mount: HostMount
    path: str
    """A directory of programs inside, for PATH."""
    variable: str
    """The variable that makes the interpreter look in `mount.target`."""


def checked_packages(pip: object = (), npm: object = ()) -> Packages:
    return Packages(
        _checked("pip_packages", pip, _PIP, "name, or name==version; no option, URL or path"),
        _checked("npm_packages", npm, _NPM, "name, or name@version; no option, URL or path"),
    )


def package_name(ecosystem: Ecosystem, spec: str) -> str:
    """Return only the name, normalized as its index compares it."""
    match = (_PIP if ecosystem == "pip" else _NPM).match(spec)
    name = match["name"] if match else spec
    return re.sub(r"[-_.]+", "-", name).lower() if ecosystem == "pip" else name


def npm_range(spec: str) -> str:
    match = _NPM.match(spec)
    return (match["range"] if match else None) or "latest"


def check_allowed(packages: Packages, allow: Iterable[str] | None) -> None:
    """Raise PolicyDenied unless `allow` (names, `pip:name`, `npm:name`) has every package."""
    if allow is None:
        return
    allowed = set(allow)
    for ecosystem, specs in packages.ecosystems:
        for spec in specs:
            name = package_name(ecosystem, spec)
            if not allowed & {name, f"{ecosystem}:{name}"}:
                raise PolicyDenied(
                    f"package {name} ({ecosystem}) is not on the allow-list",
                    hint=f"packages.allow: {', '.join(sorted(allowed)) or '(empty)'}",
                    field=f"{ecosystem}_packages",
                    package=name,
                )


def environment(sets: Iterable[PackageSet], path: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return variables to add; `path` is the PATH without packages.

    The caller's own PYTHONPATH and PATH stay, and their directories come first.
    """
    variables: dict[str, str] = {}
    programs = []
    for packages in sets:
        value = env.get(packages.variable)
        variables[packages.variable] = (
            f"{value}:{packages.mount.target}" if value else packages.mount.target
        )
        programs.append(packages.path)
    if programs:
        search_path = env.get("PATH")
        joined = ":".join(programs)
        variables["PATH"] = f"{search_path}:{joined}" if search_path else f"{joined}:{path}"
    return variables


def _checked(field: str, value: object, pattern: re.Pattern[str], wanted: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise InvalidRequest(
            f"{field} must be a list of names", hint=f"each one: {wanted}", field=field
        )
    if len(value) > MAX_PACKAGES:
        raise InvalidRequest(
            f"{field} has {len(value)} entries", hint=f"at most {MAX_PACKAGES}", field=field
        )
    for name in value:
        if (
            not isinstance(name, str)
            or len(name) > MAX_PACKAGE_NAME
            or not _named(pattern, _tight(name))
        ):
            raise InvalidRequest(
                f"{shown(str(name))} is not a valid package name",
                hint=f"write {wanted}",
                field=field,
            )
    return tuple(sorted({_tight(name) for name in value}))


def _named(pattern: re.Pattern[str], spec: str) -> bool:
    return pattern.match(spec) is not None and (pattern is _NPM or _ARCHIVE.search(spec) is None)


def _tight(spec: str) -> str:
    """Remove spaces around comparisons."""
    return re.sub(r"\s*(===|==|~=|!=|<=|>=|<|>|,)\s*", r"\1", spec.strip())
