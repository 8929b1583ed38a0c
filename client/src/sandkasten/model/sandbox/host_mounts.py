"""Host mounts: what an operator may show of the host, and which of it a request may name.

Pure and lexical: `linux` checks the real path when a mount is used, and calls `check_source` again
with it. A mount is read-only unless the operator's entry says `rw`; devices and setuid never work.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from sandkasten.errors import InvalidRequest, PolicyDenied, UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.tenancy import DEFAULT_TENANT, checked_tenant
from sandkasten.model.sandbox.cell_spec import TMP, WORKSPACE
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sandkasten.model.backends.capabilities import Capabilities

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
MAX_MOUNTS = 64
_PATH_MAX = 4096
_ENTRY_KEYS = ("source", "target", "default", "mode", "tenants")

# Paths that give control of the host to a reader, or to a client of a socket in them.
_SECRETS = (
    "/proc", "/sys", "/dev", "/run", "/var/run", "/root", "/boot",
    "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers",
    "/etc/sudoers.d", "/etc/ssh", "/etc/ssl/private", "/etc/sandkasten",
    "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet",
    "/var/lib/sandkasten",
)  # fmt: skip
# Directories whose files the host itself runs or trusts: they can be shown, but not be writable.
_SYSTEM = (
    "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/var/log",
    "/var/spool", "/var/cache", "/var/mail", "/var/backups", "/var/lib/apt", "/var/lib/dpkg",
    "/var/lib/systemd",
)  # fmt: skip
# Directories of a home that hold keys and tokens, wherever the home lies.
_KEYS = frozenset({".ssh", ".aws", ".gnupg", ".kube", ".docker", ".azure", ".password-store"})
# What the sandbox itself is made of: covering it would change what the sandbox is.
_TAKEN = (
    "/proc", "/sys", "/dev", "/run", "/etc", WORKSPACE, "/work", TMP, "/home", "/root",
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/boot", "/var/run",
)  # fmt: skip


Mode = Literal["ro", "rw"]


@dataclass(frozen=True, slots=True)
class MountRule:
    """One entry of `policy.mounts`, or the part of it that a request names."""

    name: str
    source: str
    target: str
    default: bool = False
    """Given to every sandbox, named or not."""
    mode: Mode = "ro"
    tenants: tuple[str, ...] = ()
    """Who may use it. Empty: a read-only mount is for all, a writable one for the operator's own
    tenant."""
    below: str = ""
    """The directory below the source that a request names; the rest is not shown."""

    def is_for(self, tenant: str) -> bool:
        if self.tenants:
            return tenant in self.tenants
        return self.mode == "ro" or tenant == DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class Mounted:
    """A host mount as its sandbox sees it, without its source on the host."""

    name: str
    target: str
    mode: Mode = "ro"
    below: str = ""
    """The directory below the mount that is shown; empty: all of it."""


def parse_mounts(value: object, data_dir: str) -> tuple[MountRule, ...]:
    """Parse the operator's rules: a mapping, or strings `name=source[:target[:option]...]`.

    Options are `default`, `rw` and `tenant=NAME`.

    InvalidRequest names the entry and what is wrong with it.
    """
    if isinstance(value, dict):
        rules = [_from_mapping(name, entry) for name, entry in value.items()]
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        rules = [_from_text(item) for item in value]
    else:
        raise InvalidRequest(
            "mounts must be a mapping or a list",
            hint="write {models: {source: /data/models, target: /models}}",
        )
    if len(rules) > MAX_MOUNTS:
        raise InvalidRequest(f"there are {len(rules)} mounts", hint=f"at most {MAX_MOUNTS}")
    for rule in rules:
        check_source(rule.name, rule.source, data_dir)
        if rule.mode == "rw":
            check_writable_source(rule.name, rule.source)
        _check_target(rule)
    _check_apart(rules)
    return tuple(rules)


def mount_text(rule: MountRule) -> str:
    """Return the entry as one string, as `config show` and environment variables hold it."""
    options = [
        *(["default"] if rule.default else []),
        *(["rw"] if rule.mode == "rw" else []),
        *(f"tenant={tenant}" for tenant in rule.tenants),
    ]
    return ":".join((f"{rule.name}={rule.source}", rule.target, *options))


def choose_mounts(
    requested: Iterable[object], rules: Sequence[MountRule], tenant: str = DEFAULT_TENANT
) -> tuple[MountRule, ...]:
    """Return the default mounts and the named ones, in the operator's order.

    `name/directory` is a part of a mount. PolicyDenied for anything that is not in the policy of
    this tenant: a request can never name a path of the host.
    """
    allowed = [rule for rule in rules if rule.is_for(tenant)]
    names = {rule.name for rule in allowed}
    if isinstance(requested, str):
        raise InvalidRequest("mounts must be a list of names", hint=f"give [{shown(requested)}]")
    wanted: dict[str, str] = {}
    for mount in requested:
        if not isinstance(mount, str):
            raise InvalidRequest(
                "the name of a mount must be a string", hint="name a mount of policy.mounts"
            )
        name, _, below = mount.partition("/")
        if name not in names:
            raise _denied(mount, names)
        if mount != name and not _is_plain(below):
            raise _denied(mount, names)
        if wanted.setdefault(name, below) != below:
            raise InvalidRequest(
                f"mount {name} is requested with two directories",
                hint="name one directory of a mount",
                field="mounts",
            )
    return tuple(
        replace(rule, below=wanted.get(rule.name, ""))
        for rule in allowed
        if rule.default or rule.name in wanted
    )


def _is_plain(below: str) -> bool:
    parts = below.split("/")
    plain = all(part not in ("", ".", "..") for part in parts)
    return plain and below.isprintable() and len(below.encode()) < _PATH_MAX


def check_mounts_on(rules: Iterable[MountRule], backend: str, can: Capabilities) -> None:
    """Raise UnsupportedByBackend for a writable mount where the owner of files would be unknown."""
    for rule in rules:
        if rule.mode == "rw" and not can.writable_mounts:
            raise UnsupportedByBackend(
                f"backend {backend} does not support the writable mount {rule.name}",
                hint="use backend local, or upload and download the files",
                mount=rule.name,
            )


def check_source(name: str, source: str, data_dir: str) -> None:
    """Raise InvalidRequest if this path would show secrets of the host."""
    path = PurePosixPath(source)
    for secret in (*_SECRETS, data_dir):
        if _touches(path, PurePosixPath(secret)):
            raise _bad(name, f"source {shown(source)} would show {secret}")
    if len(path.parts) <= 3 and path.parts[:2] == ("/", "home"):
        raise _bad(name, f"source {shown(source)} is a whole home directory, or all of them")
    if keys := _KEYS.intersection(path.parts):
        raise _bad(name, f"source {shown(source)} holds keys ({min(keys)})")


def check_writable_source(name: str, source: str) -> None:
    """Raise InvalidRequest if the host runs or trusts what lies there."""
    path = PurePosixPath(source)
    for system in _SYSTEM:
        if _touches(path, PurePosixPath(system)):
            raise _bad(name, f"source {shown(source)} is a system directory and cannot be writable")
    if hidden := [part for part in path.parts if part.startswith(".")]:
        raise _bad(
            name,
            f"source {shown(source)} lies in the hidden directory {hidden[0]}, and programs of the "
            "host run what is configured there",
        )


def touching(path: str, other: str) -> bool:
    """Return whether one path would cover the other."""
    return _touches(PurePosixPath(path), PurePosixPath(other))


def _check_target(rule: MountRule) -> None:
    path = PurePosixPath(rule.target)
    for reserved in _TAKEN:
        if _touches(path, PurePosixPath(reserved)):
            raise _bad(rule.name, f"target {shown(rule.target)} would cover {reserved}", "/mnt/…")


def _check_apart(rules: Sequence[MountRule]) -> None:
    for at, rule in enumerate(rules):
        for other in rules[:at]:
            if rule.name == other.name:
                raise _bad(rule.name, "the name is there twice", "another name")
            if _touches(PurePosixPath(rule.target), PurePosixPath(other.target)):
                raise _bad(
                    rule.name, f"target {shown(rule.target)} meets that of {other.name}", "another"
                )


def _touches(path: PurePosixPath, other: PurePosixPath) -> bool:
    return path == other or path in other.parents or other in path.parents


def _from_mapping(name: object, entry: object) -> MountRule:
    checked = _checked_name(name)
    if not isinstance(entry, dict):
        raise _bad(checked, "it is not a mapping", "{source: /data/models, target: /models}")
    for key in entry:
        if key not in _ENTRY_KEYS:
            raise InvalidRequest(
                f"mount {checked} has an unknown key {shown(str(key))}",
                hint=did_you_mean(str(key), _ENTRY_KEYS),
            )
    default = entry.get("default", False)
    if not isinstance(default, bool):
        raise _bad(checked, "default is neither true nor false", "true or false")
    mode = entry.get("mode", "ro")
    if mode not in ("ro", "rw"):
        raise _bad(checked, f"mode must be ro or rw, got {shown(str(mode))}", "ro or rw")
    if default and mode == "rw":
        raise _bad(checked, "a writable mount cannot be a default", "default: false")
    return MountRule(
        checked,
        _checked_path(checked, "source", entry.get("source")),
        _checked_path(checked, "target", entry.get("target", f"/mnt/{checked}")),
        default,
        mode,
        _checked_tenants(checked, entry.get("tenants", [])),
    )


def _checked_tenants(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(tenant, str) for tenant in value):
        raise _bad(name, "tenants must be a list of names", "[default, team-a]")
    return tuple(dict.fromkeys(checked_tenant(tenant) for tenant in value))


def _from_text(text: str) -> MountRule:
    name, equals, rest = text.partition("=")
    source, *more = rest.split(":")
    options = more[1:]
    tenants = [option.removeprefix("tenant=") for option in options if option.startswith("tenant=")]
    flags = [option for option in options if not option.startswith("tenant=")]
    if not equals or len(set(flags)) != len(flags) or not {"default", "rw"}.issuperset(flags):
        raise InvalidRequest(
            f"{shown(text)} is not a valid mount",
            hint="name=/source:/target[:default][:rw][:tenant=NAME]",
        )
    entry = {
        "source": source,
        "target": more[0] if more else f"/mnt/{name}",
        "default": "default" in flags,
        "mode": "rw" if "rw" in flags else "ro",
        "tenants": tenants,
    }
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
    if not path.isprintable() or any(char in path for char in ",:\\"):
        raise _bad(name, f"{what} {shown(path)} has a character that paths here may not have")
    parts = [part for part in path.split("/") if part]
    if "." in parts or ".." in parts:
        raise _bad(name, f"{what} {shown(path)} is not written out", "a path without . and ..")
    return "/" + "/".join(parts)


def _denied(name: str, names: Iterable[str]) -> PolicyDenied:
    listed = ", ".join(sorted(names)) or "none"
    if "/" in name:
        return PolicyDenied(
            f"a request cannot mount the path {shown(name)}",
            hint=f"only the operator's policy.mounts can be named; known: {listed}",
            field="mounts",
        )
    return PolicyDenied(
        f"{shown(name)} is not a mount of the policy",
        hint=f"the operator sets policy.mounts; known: {listed}",
        field="mounts",
    )


def _bad(name: str, what: str, instead: str = "another directory") -> InvalidRequest:
    return InvalidRequest(f"mount {name}: {what}", hint=f"give {instead}", field="mounts")
