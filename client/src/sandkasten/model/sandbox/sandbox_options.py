"""The options of a sandbox, as one value.

Create, one-shots, agent files, the command line and the client all carry a `SandboxOptions`; field
names are those of the public contract. A new option is a field here (with its line in
`SandboxKeywords`), a rule in `engine.lifecycle.planner`, a flag in `cli.options` and, for agent
files, a field in `agents.definitions.sandbox_field`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence  # noqa: TC003  (the API reads the annotations)
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final, TypedDict

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.environment import MAX_LABEL_VALUE, MAX_LABELS
from sandkasten.model.field_patterns import (
    DEVICE_ID,
    ENV_NAME,
    GPUS,
    HOSTNAME,
    IMAGE_NAME,
    LABEL_NAME,
    NO_NUL,
    NPM_PACKAGE,
    PIP_PACKAGE,
    SNAPSHOT_ID,
    WORKSPACE_NAME,
    shown_form,
)
from sandkasten.model.images.image_name import MAX_NAME
from sandkasten.model.sandbox.gpus import MAX_GPUS
from sandkasten.model.sandbox.isolation_levels import ISOLATIONS
from sandkasten.model.sandbox.network_limits import LIMIT_SCHEMAS, MAX_USED_SECRETS
from sandkasten.model.sandbox.package_sets import MAX_PACKAGE_NAME, MAX_PACKAGES

Number = int | float

_NO_STRINGS: Final[Mapping[str, str]] = MappingProxyType({})
_NO_NUMBERS: Final[Mapping[str, Number]] = MappingProxyType({})
SECONDS: Final[Mapping[str, Any]] = {"ge": 0, "le": 10**9, "schema": {"minimum": 1}}
"""Bounds of a time in any request."""
ENVIRONMENT: Final = {
    "propertyNames": {"pattern": shown_form(ENV_NAME)},
    "additionalProperties": {"type": "string", "pattern": shown_form(NO_NUL)},
}
_IMAGE: Final = {"pattern": shown_form(IMAGE_NAME), "maxLength": MAX_NAME}
LABELS: Final = {
    "propertyNames": {"pattern": shown_form(LABEL_NAME)},
    "additionalProperties": {
        "type": "string",
        "pattern": shown_form(NO_NUL),
        "maxLength": MAX_LABEL_VALUE,
    },
    "maxProperties": MAX_LABELS,
}
_DEVICE: Final = {"type": "string", "pattern": shown_form(DEVICE_ID)}
# Each keyword applies to the type that it is about.
_GPUS: Final = {
    "minimum": 0,
    "maximum": MAX_GPUS,
    "pattern": shown_form(GPUS),
    "items": _DEVICE,
    "minItems": 1,
    "maxItems": MAX_GPUS,
}


_RULES: Final = {
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": 300},
    "maxItems": 256,
}
NETWORK: Final = {
    "pattern": "^(?:none|full)$",
    "properties": {
        "allow": _RULES,
        "deny": _RULES,
        "secrets": {"type": "array", "items": {"type": "string"}, "maxItems": MAX_USED_SECRETS},
        "inspect": {"type": "boolean"},
        "dry_run": {"type": "boolean"},
        "limits": {
            "type": ["object", "null"],
            "properties": LIMIT_SCHEMAS,
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
"""A network is a string or an object; each keyword is about one of the two."""


def described(description: str, **more: Any) -> dict[str, Any]:
    """Return field metadata for the API document: the description, the bounds that it enforces,
    and in `schema` further keywords of a JSON Schema, which the rules of `model` enforce.
    """
    return {"description": description, **more}


def _packages(pattern: str) -> dict[str, Any]:
    name = {"type": "string", "pattern": shown_form(pattern), "maxLength": MAX_PACKAGE_NAME}
    return described(
        "Installed before the sandbox starts; it needs no network.",
        schema={"items": name, "maxItems": MAX_PACKAGES},
    )


def _choice(*names: str) -> dict[str, Any]:
    return described(", ".join(f"`{name}`" for name in names) + ".", schema={"enum": list(names)})


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """None means the operator's default. Values are checked by the planner, not here."""

    image: str | None = field(default=None, metadata={"schema": _IMAGE})
    ttl_seconds: float | None = field(
        default=None,
        metadata=described(
            "Seconds without activity until the sandbox ends. 0 means the server's own.",
            ge=0,
            le=10**9,
            schema={"anyOf": [{"const": 0}, {"minimum": 1}]},
        ),
    )
    idle_timeout_seconds: float | None = field(
        default=None,
        metadata=described(
            "Another name for `ttl_seconds`; the smaller of the two counts.", **SECONDS
        ),
    )
    lifetime_seconds: float | None = field(
        default=None,
        metadata=described("Seconds until the sandbox ends, active or not.", **SECONDS),
    )
    env: Mapping[str, str] = field(
        default_factory=lambda: _NO_STRINGS, metadata={"schema": ENVIRONMENT}
    )
    labels: Mapping[str, str] = field(
        default_factory=lambda: _NO_STRINGS, metadata={"schema": LABELS}
    )
    limits: Mapping[str, Number] = field(default_factory=lambda: _NO_NUMBERS)
    """Public names: cpu_limit, mem_limit_mb, pids_limit, …; see `model.sandbox.limit_names`."""
    profile: str | None = field(
        default=None,
        metadata=_choice("hardened", "dev"),
    )
    backend: str | None = None
    isolation: str | None = field(
        default=None,
        metadata=_choice(*ISOLATIONS),
    )
    network: str | Mapping[str, Any] | None = field(
        default=None,
        metadata=described(
            "`none` (the default), `full`, or `{allow: [rule], deny: [rule], secrets: [name], "
            "inspect, dry_run, limits}`. A rule is "
            "a host, `*.host`, `host:port`, an address, a network or `preset:name`.",
            schema=NETWORK,
        ),
    )
    hostname: str | None = field(
        default=None,
        metadata=described(
            "Host name inside: letters, digits and hyphens. Default `sandbox`.",
            schema={"pattern": shown_form(HOSTNAME)},
        ),
    )
    workspace_id: str | None = field(
        default=None,
        metadata=described(
            "Name of a workspace that outlives the sandbox; made at first use.",
            schema={"pattern": shown_form(WORKSPACE_NAME)},
        ),
    )
    workspace_mode: str | None = field(
        default=None,
        metadata=described(
            "`exclusive` (the default) or `shared`; requires a named workspace.",
            schema={"enum": ["exclusive", "shared"]},
        ),
    )
    snapshot: str | None = field(
        default=None,
        metadata=described(
            "Id or name of the snapshot to start from. Image, limits, environment, network, labels "
            "and shells that the request does not name are those of the snapshot.",
            schema={"pattern": f"^(?:{SNAPSHOT_ID}|{WORKSPACE_NAME})$"},
        ),
    )
    mounts: tuple[str, ...] = field(
        default=(),
        metadata=described(
            "Names of the operator's `policy.mounts`, or `name/directory` below one."
        ),
    )
    pip_packages: tuple[str, ...] = field(
        default=(),
        metadata=_packages(PIP_PACKAGE),
    )
    npm_packages: tuple[str, ...] = field(
        default=(),
        metadata=_packages(NPM_PACKAGE),
    )
    gpus: int | str | tuple[str, ...] | None = field(
        default=None,
        metadata=described(
            "A number of GPUs, `all`, or device ids; within `policy.gpus`.", schema=_GPUS
        ),
    )


SESSION_ONLY: Final = frozenset(
    {"ttl_seconds", "idle_timeout_seconds", "lifetime_seconds", "labels", "snapshot"}
)
"""Options that have no meaning for a one-shot, which ends with its code."""


class SandboxKeywords(TypedDict, total=False):
    """The options as keyword arguments of the client; `image` is a separate parameter."""

    env: Mapping[str, str] | None
    limits: Mapping[str, Number] | None
    network: str | Mapping[str, Any] | None
    hostname: str | None
    profile: str | None
    backend: str | None
    isolation: str | None
    workspace: str | None
    workspace_mode: str | None
    workspace_id: str | None
    mounts: Sequence[str]
    pip_packages: Sequence[str]
    npm_packages: Sequence[str]
    gpus: int | str | Sequence[str] | None


class SessionKeywords(SandboxKeywords, total=False):
    """The keyword arguments of a sandbox that stays."""

    ttl_seconds: float | None
    idle_timeout_seconds: float | None
    lifetime_seconds: float | None
    labels: Mapping[str, str] | None
    snapshot: str | None
    session_key: str | None
