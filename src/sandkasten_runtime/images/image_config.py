"""The configuration that an image brings with its layers. Pure.

Read from the JSON of an OCI or Docker configuration, which is untrusted: wrong types and excessive
sizes raise InvalidImage. `raw` keeps what we do not use, for export.
"""

from __future__ import annotations

import os
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidImage, InvalidRequest, PayloadTooLarge
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.model.environment import checked_environment
from sandkasten_runtime.images.canonical_json import canonical_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_LAYERS: Final = 128
DIGEST: Final = lazy_pattern.compile(r"sha256:[0-9a-f]{64}\Z")
_ENV_NAME: Final = lazy_pattern.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}\Z")
_DAMAGED: Final = "the archive is damaged or was made by something else"
_MACHINES: Final = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "armv6l": "arm",
    "i386": "386",
    "i686": "386",
    "loongarch64": "loong64",
}


def machine_architecture() -> str:
    """Return this machine's architecture in image spelling."""
    machine = os.uname().machine
    return _MACHINES.get(machine, machine)


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """`entrypoint` and `cmd` are kept and shown, never run: the first process is the runner."""

    architecture: str = ""
    os: str = "linux"
    variant: str = ""
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    workdir: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    created: str = ""
    raw: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), compare=False)

    @property
    def platform(self) -> str:
        parts = (self.os, self.architecture or machine_architecture(), self.variant)
        return "/".join(part for part in parts if part)

    def content(self) -> bytes:
        """Return the parts that count when two images are compared; build times do not."""
        return canonical_json(
            {
                "architecture": self.architecture,
                "os": self.os,
                "variant": self.variant,
                "env": list(self.env.items()),
                "user": self.user,
                "entrypoint": list(self.entrypoint),
                "cmd": list(self.cmd),
                "workdir": self.workdir,
                "labels": dict(self.labels),
            }
        )

    def as_oci(self, diff_ids: Sequence[str]) -> dict[str, Any]:
        """Return the configuration for these layers in the OCI form."""
        inner = self.raw.get("config")
        config: dict[str, Any] = dict(inner) if isinstance(inner, dict) else {}
        config["Env"] = [f"{name}={value}" for name, value in self.env.items()]
        for name, value in (
            ("User", self.user),
            ("Entrypoint", list(self.entrypoint)),
            ("Cmd", list(self.cmd)),
            ("WorkingDir", self.workdir),
            ("Labels", dict(self.labels)),
        ):
            config.pop(name, None)
            if value:
                config[name] = value
        whole: dict[str, Any] = {
            "architecture": self.architecture or machine_architecture(),
            "os": self.os or "linux",
            "config": config,
            # Its history lists the original layers; ours may be others.
            "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        }
        if self.variant:
            whole["variant"] = self.variant
        if self.created:
            whole["created"] = self.created
        return whole


def parse_config(raw: object) -> ImageConfig:
    """Parse the JSON of an image's configuration. Raise InvalidImage."""
    whole = _mapping("the configuration", raw)
    inner = _mapping("config", whole.get("config"))
    return ImageConfig(
        architecture=_text("architecture", whole.get("architecture")),
        os=_text("os", whole.get("os")) or "linux",
        variant=_text("variant", whole.get("variant")),
        env=_environment(inner.get("Env")),
        user=_text("User", inner.get("User")),
        entrypoint=_texts("Entrypoint", inner.get("Entrypoint")),
        cmd=_texts("Cmd", inner.get("Cmd")),
        workdir=_text("WorkingDir", inner.get("WorkingDir")),
        labels=MappingProxyType(_labels(inner.get("Labels"))),
        created=_text("created", whole.get("created")),
        raw=MappingProxyType(dict(whole)),
    )


def diff_ids_of(raw: object) -> tuple[str, ...]:
    """Return the digests of the uncompressed layers that a configuration names, lowest first."""
    rootfs = _mapping("rootfs", _mapping("the configuration", raw).get("rootfs"))
    digests = _texts("diff_ids", rootfs.get("diff_ids"))
    for digest in digests:
        checked_digest(digest)
    if len(digests) > MAX_LAYERS:
        raise bad(f"{len(digests)} layers are too many", f"at most {MAX_LAYERS}")
    return digests


def checked_digest(text: object) -> str:
    if not isinstance(text, str) or not DIGEST.match(text):
        raise bad(f"{str(text)[:80]!r} is not a valid sha256 digest", "use sha256:<64 hex digits>")
    return text


def bad(what: str, hint: str = _DAMAGED) -> InvalidImage:
    return InvalidImage(f"the image cannot be used: {what}", hint=hint)


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad(f"{name} must be an object")
    return value


def _text(name: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or "\0" in value or len(value) > 4096:
        raise bad(f"{name} must be a string")
    return value


def _texts(name: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    # Old Docker versions wrote a single string for a shell command.
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or len(value) > 4096:
        raise bad(f"{name} must be a list of strings")
    if not all(isinstance(item, str) and "\0" not in item for item in value):
        raise bad(f"{name} must be a list of strings")
    return tuple(value)


def _labels(value: object) -> dict[str, str]:
    labels = _mapping("Labels", value)
    if not all(isinstance(label, str) for label in labels.values()):
        raise bad("Labels must be strings")
    return dict(labels)


def _environment(value: object) -> Mapping[str, str]:
    """Return the environment without names that no shell can express; `raw` still has them."""
    env: dict[str, str] = {}
    for line in _texts("Env", value):
        name, equals, content = line.partition("=")
        if equals and _ENV_NAME.match(name):
            env[name] = content
    try:
        return MappingProxyType(checked_environment(env))
    except (InvalidRequest, PayloadTooLarge) as exc:
        raise bad(f"Env: {exc.message}", exc.hint) from exc
