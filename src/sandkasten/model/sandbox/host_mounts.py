"""Host mounts: what an operator may show of the host, and which of it a request may name.

Pure and lexical: `linux` checks the real path when a mount is used, and calls `check_source` again
with it. A mount is always read-only, without devices and setuid.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from sandkasten.errors import InvalidRequest, PolicyDenied
from sandkasten.model.sandbox.cell_spec import TMP, WORKSPACE
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
MAX_MOUNTS = 64
_PATH_MAX = 4096

# Paths that give control of the host to a reader, or to a client of a socket in them.
_SECRETS = (
    "/proc", "/sys", "/dev", "/run", "/var/run", "/root", "/boot",
    "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers",
    "/etc/sudoers.d", "/etc/ssh", "/etc/ssl/private", "/etc/sandkasten",
    "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet",
    "/var/lib/sandkasten",
)  # fmt: skip
# Directories of a home that hold keys and tokens, wherever the home lies.
_KEYS = frozenset({".ssh", ".aws", ".gnupg", ".kube", ".docker", ".azure", ".password-store"})
# What the sandbox itself is made of: covering it would change what the sandbox is.
_TAKEN = (
    "/proc", "/sys", "/dev", "/run", "/etc", WORKSPACE, "/work", TMP, "/home", "/root",
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/boot", "/var/run",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MountRule:
    """One entry of `policy.mounts`."""

    name: str
    source: str
    target: str
    default: bool = False
    """Given to every sandbox, named or not."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """A host mount as its sandbox sees it, without its source on the host."""

    name: str
    target: str


def parse_mounts(value: object, data_dir: str) -> tuple[MountRule, ...]:
    """Parse the operator's rules: a mapping, or strings `name=source[:target[:default]]`.

    InvalidRequest names the entry and what is wrong with it.
    """
    if isinstance(value, dict):
        rules = [_from_mapping(name, one) for name, one in value.items()]
    elif isinstance(value, list) and all(isinstance(one, str) for one in value):
        rules = [_from_text(one) for one in value]
    else:
        raise InvalidRequest(
            "mounts must be a mapping or a list",
            hint="write {models: {source: /data/models, target: /models}}",
        )
    if len(rules) > MAX_MOUNTS:
        raise InvalidRequest(f"there are {len(rules)} mounts", hint=f"at most {MAX_MOUNTS}")
    for rule in rules:
        check_source(rule.name, rule.source, data_dir)
        _check_target(rule)
    _check_apart(rules)
    return tuple(rules)


def mount_text(rule: MountRule) -> str:
    """Return the entry as one string, as `config show` and environment variables hold it."""
    return f"{rule.name}={rule.source}:{rule.target}{':default' if rule.default else ''}"


def choose_mounts(asked: Iterable[object], known: Sequence[MountRule]) -> tuple[MountRule, ...]:
    """Return the default mounts and the named ones, in the operator's order.

    PolicyDenied for anything that is not in the policy: a request can never name a path.
    """
    names = {rule.name for rule in known}
    if isinstance(asked, str):
        raise InvalidRequest("mounts must be a list of names", hint=f"give [{shown(asked)}]")
    wanted = set()
    for name in asked:
        if not isinstance(name, str):
            raise InvalidRequest(
                "the name of a mount must be a string", hint="name a mount of policy.mounts"
            )
        if name not in names:
            raise _denied(name, names)
        wanted.add(name)
    return tuple(rule for rule in known if rule.default or rule.name in wanted)


def check_source(name: str, source: str, data_dir: str) -> None:
    """Raise InvalidRequest if showing this path would give the host away."""
    path = PurePosixPath(source)
    for secret in (*_SECRETS, data_dir):
        if _touches(path, PurePosixPath(secret)):
            raise _bad(name, f"source {shown(source)} would show {secret}")
    if len(path.parts) <= 3 and path.parts[:2] == ("/", "home"):
        raise _bad(name, f"source {shown(source)} is a whole home directory, or all of them")
    if found := _KEYS.intersection(path.parts):
        raise _bad(name, f"source {shown(source)} holds keys ({min(found)})")


def touching(path: str, other: str) -> bool:
    """Return whether one path would cover the other."""
    return _touches(PurePosixPath(path), PurePosixPath(other))


def _check_target(rule: MountRule) -> None:
    path = PurePosixPath(rule.target)
    for taken in _TAKEN:
        if _touches(path, PurePosixPath(taken)):
            raise _bad(rule.name, f"target {shown(rule.target)} would cover {taken}", "/mnt/…")


def _check_apart(rules: Sequence[MountRule]) -> None:
    for at, one in enumerate(rules):
        for other in rules[:at]:
            if one.name == other.name:
                raise _bad(one.name, "the name is there twice", "another name")
            if _touches(PurePosixPath(one.target), PurePosixPath(other.target)):
                raise _bad(
                    one.name, f"target {shown(one.target)} meets that of {other.name}", "another"
                )


def _touches(path: PurePosixPath, other: PurePosixPath) -> bool:
    return path == other or path in other.parents or other in path.parents


def _from_mapping(name: object, entry: object) -> MountRule:
    checked = _checked_name(name)
    if not isinstance(entry, dict):
        raise _bad(checked, "it is not a mapping", "{source: /data/models, target: /models}")
    for key in entry:
        if key not in ("source", "target", "default"):
            raise InvalidRequest(
                f"mount {checked} has an unknown key {shown(str(key))}",
                hint=did_you_mean(str(key), ("source", "target", "default")),
            )
    default = entry.get("default", False)
    if not isinstance(default, bool):
        raise _bad(checked, "default is neither true nor false", "true or false")
    return MountRule(
        checked,
        _checked_path(checked, "source", entry.get("source")),
        _checked_path(checked, "target", entry.get("target", f"/mnt/{checked}")),
        default,
    )


def _from_text(text: str) -> MountRule:
    name, equals, rest = text.partition("=")
    parts = rest.split(":")
    if not equals or len(parts) > 3 or (len(parts) == 3 and parts[2] != "default"):
        raise InvalidRequest(
            f"{shown(text)} is not a valid mount", hint="name=/source:/target[:default]"
        )
    target = parts[1] if len(parts) > 1 else f"/mnt/{name}"
    entry = {"source": parts[0], "target": target, "default": len(parts) == 3}
    return _from_mapping(name, entry)


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidRequest(
            f"{shown(str(name))} is not a valid mount name",
            hint="1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit",
        )
    return name


def _checked_path(name: str, what: str, path: object) -> str:
    if not isinstance(path, str) or not path.startswith("/") or len(path) >= _PATH_MAX:
        raise _bad(name, f"{what} is not an absolute path", "/data/models")
    if not path.isprintable() or any(one in path for one in ",:\\"):
        raise _bad(name, f"{what} {shown(path)} has a character that paths here may not have")
    parts = [part for part in path.split("/") if part]
    if "." in parts or ".." in parts:
        raise _bad(name, f"{what} {shown(path)} is not written out", "a path without . and ..")
    return "/" + "/".join(parts)


def _denied(name: str, names: Iterable[str]) -> PolicyDenied:
    known = ", ".join(sorted(names)) or "none"
    if "/" in name:
        return PolicyDenied(
            f"a request cannot mount the path {shown(name)}",
            hint=f"only the operator's policy.mounts can be named; known: {known}",
            field="mounts",
        )
    return PolicyDenied(
        f"{shown(name)} is not a mount of the policy",
        hint=f"the operator sets policy.mounts; known: {known}",
        field="mounts",
    )


def _bad(name: str, what: str, instead: str = "another directory") -> InvalidRequest:
    return InvalidRequest(f"mount {name}: {what}", hint=f"give {instead}", field="mounts")
