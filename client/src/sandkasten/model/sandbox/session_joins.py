"""Whether a request may join the session that its key names: one rule for each option. Pure.

A session was made with the options of the request that opened it. A later request with its key gets
that session only if everything holds that it names itself. An agent's file also counts for what it
does not name: without a network it must not run with one, and a session must not be smaller than
the default.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.limit_names import limit_field, public_limits
from sandkasten.model.sandbox.network_shares import SHARED_LIMITS
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.spelling import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sandkasten.model.sandbox.limits import Limits

Rule = Literal["same", "at least", "contains", "each limit"]
Scope = Literal["session", "command"]

JOIN_REFUSED: Final = "session_options"
"""`details.reason` of the Conflict of a request that may not join a session."""
OPTION_RULES: Final[Mapping[str, tuple[Rule, str]]] = MappingProxyType(
    {
        "image": ("same", "image"),
        "ttl_seconds": ("at least", "idle_timeout_s"),
        "idle_timeout_seconds": ("at least", "idle_timeout_s"),
        "lifetime_seconds": ("at least", "lifetime_s"),
        "env": ("same", "env"),
        "labels": ("contains", "labels"),
        "limits": ("each limit", "limits"),
        "profile": ("same", "profile"),
        "backend": ("same", "backend"),
        # An isolation leads to a backend.
        "isolation": ("same", "backend"),
        "network": ("same", "network"),
        "hostname": ("same", "hostname"),
        "workspace_id": ("same", "workspace_id"),
        "workspace_mode": ("same", "workspace_mode"),
        "snapshot": ("same", "snapshot"),
        "mounts": ("same", "mounts"),
        "pip_packages": ("same", "pip_packages"),
        "npm_packages": ("same", "npm_packages"),
        "gpus": ("same", "gpus"),
    }
)
"""For each option of `SandboxOptions`: what a session must have if a request names the option, and
the field of `SessionShape` that is compared.
"""
LIMIT_SCOPES: Final[Mapping[str, Scope]] = MappingProxyType(
    {
        "cpus": "session",
        "memory_bytes": "session",
        "pids": "session",
        "workspace_bytes": "session",
        "tmp_bytes": "session",
        "open_files": "session",
        "exec_timeout_s": "command",
        "max_exec_timeout_s": "command",
        "stdout_bytes": "command",
        "stderr_bytes": "command",
        "artifact_bytes": "command",
        "artifacts": "command",
        "tool_file_bytes": "command",
        "tool_files": "command",
    }
)
"""For each limit: whether the session has it, or the tools apply it to each agent's own calls."""
# Fields of a shape whose None means that the value is not known, not that there is none.
_PERHAPS_UNKNOWN: Final = frozenset(
    {"image", "backend", "hostname", "pip_packages", "npm_packages"}
)
_MOST_TEXT: Final = 300
_MOST_DIFFERENCES: Final = 16


@dataclass(frozen=True, slots=True)
class Variables:
    """The environment of a session; the ledger has no values."""

    names: tuple[str, ...] = ()
    digest: str = ""
    """Empty: not known."""


@dataclass(frozen=True, slots=True)
class SessionShape:
    """What a session has, or would have if a request made it.

    An image, a backend, a host name or packages that are None are not known, and agree with all.
    """

    image: str | None
    backend: str | None
    profile: str
    network: Any
    limits: Limits
    hostname: str | None = None
    idle_timeout_s: float = 0.0
    lifetime_s: float = 0.0
    env: Variables = Variables()
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    workspace_id: str | None = None
    workspace_mode: str = "exclusive"
    snapshot: str | None = None
    mounts: tuple[str, ...] = ()
    pip_packages: tuple[str, ...] | None = ()
    npm_packages: tuple[str, ...] | None = ()
    gpus: str | None = None


@dataclass(frozen=True, slots=True)
class JoinTerms:
    """What a request requires of a session that it joins."""

    options: SandboxOptions
    """Options that are None or empty are not named."""
    complete: bool = False
    """Whether the defaults count too: of the network, and as the least size of the session."""


@dataclass(frozen=True, slots=True)
class Difference:
    field: str
    """Public name of the option: `network`, `limits.memory_mb`."""
    wanted: str
    has: str


def as_details(differing: Sequence[Difference]) -> dict[str, list[str]]:
    """Return differences as details of an error; `read_details` reads them."""
    return {
        "fields": [difference.field for difference in differing],
        "requested": [difference.wanted for difference in differing],
        "session": [difference.has for difference in differing],
    }


def read_details(details: Mapping[str, Any]) -> tuple[Difference, ...]:
    lists = (details["fields"], details["requested"], details["session"])
    return tuple(Difference(*values) for values in zip(*lists, strict=True))


def differences(
    wanted: SessionShape, session: SessionShape, terms: JoinTerms
) -> tuple[Difference, ...]:
    """Return what keeps a request from joining a session; empty if it may.

    `wanted` is what the request would make.
    """
    differing = [
        difference
        for option in fields(SandboxOptions)
        for difference in _of_option(option.name, wanted, session, terms)
    ]
    return tuple(dict.fromkeys(differing))[:_MOST_DIFFERENCES]


def variables(salt: str, env: Mapping[str, str]) -> Variables:
    """Return an environment without its values.

    The digest shows whether two requests agree. It is short, so that it cannot confirm a guess of a
    secret, and with the id of the sandbox as `salt` it is of no use elsewhere.
    """
    text = json.dumps([salt, sorted(env.items())])
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return Variables(tuple(sorted(env)), digest)


def _of_option(
    name: str, wanted: SessionShape, session: SessionShape, terms: JoinTerms
) -> Iterator[Difference]:
    rule, compared = OPTION_RULES[name]
    if rule == "each limit":
        yield from _of_limits(wanted.limits, session.limits, terms)
        return
    if not (_is_named(name, terms.options) or (terms.complete and name == "network")):
        return
    wants, has = getattr(wanted, compared), getattr(session, compared)
    if name == "network":
        has = _without_shares(has, wants)
    if rule == "contains":
        for key, value in wants.items():
            if has.get(key) != value:
                yield Difference(f"{name}.{key}", _text(value), _text(has.get(key)))
    elif rule == "at least":
        if wants > has:
            yield Difference(name, f"at least {wants:g} s", f"{has:g} s")
    elif not _agree(compared, wants, has):
        # An isolation is asked for, and a backend is what a session has.
        name = "backend" if name == "isolation" else name
        other = wants.names == has.names if isinstance(wants, Variables) else False
        yield Difference(name, _text(wants), _text(has) + (" with other values" if other else ""))


def _of_limits(wanted: Limits, session: Limits, terms: JoinTerms) -> Iterator[Difference]:
    named = {limit_field(name): name for name in terms.options.limits if name != "gpus"}
    wants, has = public_limits(wanted), public_limits(session)
    for public in wants:
        attribute = limit_field(public)
        name = named.get(attribute)
        wanted_value, session_value = getattr(wanted, attribute), getattr(session, attribute)
        if name is not None and wanted_value != session_value:
            yield Difference(
                f"limits.{name}",
                f"{public_limits(wanted, name)[name]:g}",
                f"{public_limits(session, name)[name]:g}",
            )
        elif (
            name is None
            and terms.complete
            and LIMIT_SCOPES[attribute] == "session"
            and session_value < wanted_value
        ):
            yield Difference(f"limits.{public}", f"at least {wants[public]:g}", f"{has[public]:g}")


def _without_shares(has: Any, wants: Any) -> Any:
    """Return the network of a session without limits that may be its share of a quota."""
    if not isinstance(has, dict):
        return has
    named = wants.get("limits", {}) if isinstance(wants, dict) else {}
    limits = {
        name: value
        for name, value in has.get("limits", {}).items()
        if name in named or name not in SHARED_LIMITS
    }
    network = {name: value for name, value in has.items() if name != "limits"}
    if limits:
        network["limits"] = limits
    return "full" if network == {"allow": ["*"]} else network


def _is_named(name: str, options: SandboxOptions) -> bool:
    value = getattr(options, name)
    if name == "gpus" and "gpus" in options.limits:
        return True
    return value is not None and value != () and value != {}


def _agree(name: str, wants: Any, has: Any) -> bool:
    if name in _PERHAPS_UNKNOWN and None in (wants, has):
        return True
    if isinstance(wants, Variables):
        same_digest = wants.digest == has.digest or not wants.digest or not has.digest
        return bool(wants.names == has.names) and same_digest
    return bool(_ordered(wants) == _ordered(has))


def _ordered(value: Any) -> Any:
    """Return a value whose order has no meaning as one that compares equal."""
    if isinstance(value, dict):
        return {key: _ordered(item) for key, item in value.items()}
    return sorted(value) if isinstance(value, tuple | list) else value


def _text(value: Any) -> str:
    if isinstance(value, Variables):
        value = value.names
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple | list):
        value = ", ".join(str(item) for item in value)
    elif isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return one_line(str(value), _MOST_TEXT)
