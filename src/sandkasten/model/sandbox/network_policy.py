"""What a sandbox may reach: none, full, or rules by name. Pure.

A rule is `host`, `*.host`, `host:port`, an address or a network (`192.0.2.0/24`,
`[2001:db8::1]:443`) or `preset:name`. A deny rule wins over an allow rule. Addresses that are not
public are decided by the operator alone (`NetworkCeiling.reachable`).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidRequest, PolicyDenied, UnsupportedByBackend
from sandkasten.model.addresses import holds_public, is_public, plain
from sandkasten.model.json_codec import ShapeError, Timestamp, from_json
from sandkasten.model.sandbox.network_limits import (
    LIMIT_RULE,
    NetworkLimits,
    asked_limits,
    lowered,
    within,
)
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_RULES: Final = 256
_MAX_RULE: Final = 300
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*\Z")
_NUMBERS = re.compile(r"[0-9.]+\Z|0x", re.IGNORECASE)
_KEYS: Final = ("allow", "deny", "dry_run", "limits")
# What the egress writes as the rule where it refused to dial.
_NOT_PUBLIC: Final = "address that is not public"
_MAX_REFUSALS: Final = 20
_CREATOR_ALLOWS: Final = "the creator of the sandbox can allow it (network.allow)"
_OPERATOR_OPENS: Final = "only the operator opens addresses that are not public (network.reachable)"
_CREATOR_LIMITS: Final = (
    "the creator of the sandbox can raise it (network.limits), up to the operator's limit"
)

PRESETS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "pypi": ("pypi.org:443", "files.pythonhosted.org:443"),
        "npm": ("registry.npmjs.org:443", "registry.yarnpkg.com:443"),
        "debian": (
            "deb.debian.org",
            "security.debian.org",
            "archive.ubuntu.com",
            "security.ubuntu.com",
        ),
        "crates": ("crates.io:443", "index.crates.io:443", "static.crates.io:443"),
        "golang": ("proxy.golang.org:443", "sum.golang.org:443", "storage.googleapis.com:443"),
        "github": (
            "github.com",
            "api.github.com:443",
            "codeload.github.com:443",
            "*.githubusercontent.com:443",
        ),
        "huggingface": ("huggingface.co:443", "*.huggingface.co:443", "*.hf.co:443"),
    }
)


@dataclass(frozen=True, slots=True)
class NetworkRule:
    """One destination: a name or a network, and a port."""

    text: str
    host: str | None = None
    network: str | None = None
    port: int | None = None


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """What one sandbox may reach. The default is nothing."""

    full: bool = False
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    dry_run: bool = False
    limits: NetworkLimits = NetworkLimits()
    asked: Mapping[str, int] = field(default_factory=dict)
    """Those of the limits that the request named."""

    @property
    def closed(self) -> bool:
        return not (self.full or self.allow or self.dry_run)

    def public(self) -> str | dict[str, Any]:
        """Return the value as the contract writes it."""
        if self.closed:
            return "none"
        if self.full and not (self.deny or self.dry_run or self.asked):
            return "full"
        found: dict[str, Any] = {"allow": ["*"] if self.full else list(self.allow)}
        if self.deny:
            found["deny"] = list(self.deny)
        if self.dry_run:
            found["dry_run"] = True
        if self.asked:
            found["limits"] = dict(self.asked)
        return found


CLOSED: Final = NetworkPolicy()


@dataclass(frozen=True, slots=True)
class NetworkCounts:
    """Counters since the sandbox was created."""

    open: int = 0
    opened: int = 0
    refused: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    failed: int = 0
    would_refuse: int = 0


@dataclass(frozen=True, slots=True)
class NetworkStatus:
    """The rules of a live sandbox and what was counted under them."""

    network: Any = "none"
    open: int = 0
    opened: int = 0
    refused: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    failed: int = 0
    """Allowed, but the server could not be reached."""
    would_refuse: int = 0
    """Let pass by a dry run alone."""
    suggested: tuple[str, ...] = ()
    """A rule for each host and port that it tried to reach and that a rule can open."""
    not_public: tuple[str, ...] = ()
    """What else it tried to reach: only the operator can open it, with `network.reachable`."""


@dataclass(frozen=True, slots=True)
class NetworkAttempt:
    """One step of a connection: `opened`, `closed`, `refused` or `failed`.

    `would_refuse`: a dry run let something pass that `rule` would have refused.
    """

    seq: int
    at: Timestamp
    event: str
    port: int
    rule: str = ""
    """What decided; `default` where no rule did."""
    allowed: bool = False
    """False with `opened`: a dry run let it pass."""
    connection: int = 0
    host: str | None = None
    address: str | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    ms: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A connection that the rules of the sandbox's network refused."""

    host: str
    """Its name, or its address where a program used one."""
    port: int
    rule: str = ""
    hint: str = ""

    @property
    def not_public(self) -> bool:
        """Whether only the operator can open it."""
        return self.rule == _NOT_PUBLIC


@dataclass(frozen=True, slots=True)
class NetworkCeiling:
    """The operator's limits: what requests may ask for, and what is open besides the public net."""

    allow: tuple[str, ...] | None = None
    """Rules; `*` is anything, empty is nothing. None: the operator's own requests may ask for
    anything, those of keys for nothing."""
    reachable: tuple[str, ...] = ()
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    presets: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: PRESETS)
    servers: tuple[str, ...] = ()
    """Name servers; empty: those of this machine."""
    limits: NetworkLimits = NetworkLimits()
    """The defaults and maxima of a sandbox."""


def parse_network(
    value: object,
    presets: Mapping[str, Sequence[str]] = PRESETS,
    most: NetworkLimits | None = None,
) -> NetworkPolicy:
    """Return the policy of a request; InvalidRequest names what is wrong."""
    most = most or NetworkLimits()
    if value is None or value == "none" or value is False:
        return CLOSED
    if value == "full" or value is True:
        return NetworkPolicy(full=True, limits=most)
    if not isinstance(value, dict):
        raise _invalid(
            f"{shown(str(value))} is not a valid network",
            "use none, full, or {allow: [example.com]} (--allow example.com)",
        )
    for key in value:
        if key not in _KEYS:
            raise _invalid(f"network has no field {shown(str(key))}", did_you_mean(str(key), _KEYS))
    allow, deny = (_rules(value.get(key), key, presets) for key in ("allow", "deny"))
    dry_run = value.get("dry_run", False)
    if not isinstance(dry_run, bool):
        raise _invalid("network.dry_run must be true or false", "leave it out for false")
    full = "*" in allow
    asked = asked_limits(value.get("limits"))
    limits = within(asked, most)
    return NetworkPolicy(full, () if full else allow, deny, dry_run, limits, asked)


def _rules(value: object, key: str, presets: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or len(value) > MAX_RULES:
        raise _invalid(
            f"network.{key} must be a list of at most {MAX_RULES} rules",
            'write a list such as ["example.com", "preset:pypi"]',
        )
    found: dict[str, None] = {}
    for one in value:
        if one == "*" and key == "allow":
            found["*"] = None
            continue
        for rule in rules_of(one, presets):
            found[rule.text] = None
    return tuple(found)


def rules_of(text: object, presets: Mapping[str, Sequence[str]] = PRESETS) -> list[NetworkRule]:
    """Return the rules that a string stands for; a preset stands for several."""
    if not isinstance(text, str) or not 0 < len(text) <= _MAX_RULE or not text.isascii():
        raise _invalid(f"{shown(str(text))} is not a valid rule", _EXAMPLES)
    if text.startswith("preset:"):
        name = text.removeprefix("preset:")
        if name not in presets:
            raise _invalid(f"there is no preset {shown(name)}", did_you_mean(name, presets))
        return [parse_rule(one) for one in presets[name]]
    return [parse_rule(text)]


_EXAMPLES: Final = "write api.example.com, *.example.com, example.com:443 or 192.0.2.0/24"


def parse_rule(text: str) -> NetworkRule:
    """Return one rule. Unusual spellings of addresses are refused, not guessed."""
    host, port = _split_port(text.strip().lower().rstrip("."))
    try:
        network = ipaddress.ip_network(host, strict=False)
    except ValueError:
        network = None
    if network is not None and "%" not in host:
        return NetworkRule(text, network=str(network), port=port)
    if not _NAME.match(host) or len(host) > 253 or _NUMBERS.match(host):
        raise _invalid(f"{shown(text)} is not a valid rule", _EXAMPLES)
    return NetworkRule(text, host=host, port=port)


def _split_port(text: str) -> tuple[str, int | None]:
    host, port = text, ""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise _invalid(f"{shown(text)} is not a valid rule", _EXAMPLES)
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not port:
        return host, None
    if not port.isdigit():
        raise _invalid(f"{shown(text)} is not a valid rule", _EXAMPLES)
    if not 1 <= int(port) <= 65_535:
        raise _invalid(f"{shown(text)} has no valid port", "use a port from 1 to 65535")
    return host, int(port)


def network_for(value: object, ceiling: NetworkCeiling, *, operator: bool) -> NetworkPolicy:
    """Return the policy that a request gets; PolicyDenied names the first rule it may not have."""
    policy = parse_network(value, ceiling.presets, ceiling.limits)
    allowed = _allowed(ceiling, operator=operator)
    if policy.closed or "*" in allowed:
        return policy
    permitted = [rule for text in allowed for rule in rules_of(text, ceiling.presets)]
    named = ", ".join(allowed[:8]) or "none"
    if policy.full or policy.dry_run or not permitted:
        raise PolicyDenied(
            f"this network is not permitted here; policy.network allows {named}",
            hint="request only what is permitted, or ask the operator to change policy.network",
            field="network",
            rule="policy.network",
        )
    for text in policy.allow:
        asked = parse_rule(text)
        if not any(_covers(one, asked) for one in permitted):
            raise PolicyDenied(
                f"network rule {shown(text)} is not permitted here",
                hint=f"policy.network allows: {named}",
                field="network.allow",
                rule="policy.network",
            )
    return policy


def unreachable_rules(policy: NetworkPolicy, ceiling: NetworkCeiling) -> str:
    """Return a warning about allowed addresses that the operator keeps closed; else nothing."""
    opened = [ipaddress.ip_network(one, strict=False) for one in ceiling.reachable]
    closed = [
        rule.text
        for rule in map(parse_rule, policy.allow)
        if rule.network is not None
        and not holds_public(rule.network)
        and not any(ipaddress.ip_network(rule.network).overlaps(one) for one in opened)
    ]
    if not closed:
        return ""
    return f"{', '.join(closed[:8])} will not be reached: {_OPERATOR_OPENS}"


def adopted_network(value: object, ceiling: NetworkCeiling) -> NetworkPolicy:
    """Return the policy of a sandbox that was created under other settings."""
    if isinstance(value, dict) and "limits" in value:
        value = {**value, "limits": lowered(asked_limits(value["limits"]), ceiling.limits)}
    return parse_network(value, ceiling.presets, ceiling.limits)


def default_network(ceiling: NetworkCeiling, *, operator: bool) -> NetworkPolicy:
    """Return everything that a request may have, for one that names no network."""
    allowed = list(_allowed(ceiling, operator=operator))
    if not allowed:
        return CLOSED
    return parse_network({"allow": allowed}, ceiling.presets, ceiling.limits)


def _allowed(ceiling: NetworkCeiling, *, operator: bool) -> tuple[str, ...]:
    if ceiling.allow is not None:
        return ceiling.allow
    return ("*",) if operator else ()


def _covers(wide: NetworkRule, narrow: NetworkRule) -> bool:
    if wide.port is not None and wide.port != narrow.port:
        return False
    if wide.network is not None:
        if narrow.network is None:
            return False
        outer, inner = ipaddress.ip_network(wide.network), ipaddress.ip_network(narrow.network)
        return outer.version == inner.version and inner.subnet_of(outer)  # type: ignore[arg-type]
    if wide.host is None or narrow.host is None:
        return False
    if wide.host.startswith("*."):
        return narrow.host.removeprefix("*").endswith(wide.host[1:]) or narrow.host == wide.host
    return wide.host == narrow.host


def unsupported_network(backend: str) -> UnsupportedByBackend:
    """Return the error for a backend that cannot give a network by rule."""
    return UnsupportedByBackend(
        f"backend {backend} does not support a network",
        hint="use backend local, oci, gvisor or docker, or network: none",
        backend=backend,
    )


def created_without_network(sandbox: str) -> UnsupportedByBackend:
    return UnsupportedByBackend(
        f"sandbox {sandbox} was created without a network",
        hint="create a new one with a network; its rules can be changed later",
    )


def read_network(value: object) -> object:
    """Return a stored policy as it is; ShapeError if it cannot be one."""
    if not isinstance(value, str | dict):
        raise ShapeError("network", "a string or an object")
    return value


def attempt(record: Mapping[str, Any]) -> NetworkAttempt:
    """Return a record of the egress process as a value."""
    fields = {**record, "at_unix": record.get("time")}
    return from_json(NetworkAttempt, fields, "record")


def refusals(attempts: Iterable[NetworkAttempt]) -> tuple[Refusal, ...]:
    """Return each host and port that was refused once, and how it could be reached."""
    found: dict[tuple[str, int], Refusal] = {}
    for one in attempts:
        if one.event == "refused" and len(found) < _MAX_REFUSALS:
            host = one.host or one.address or ""
            refusal = Refusal(host, one.port, one.rule, _hint(one.rule))
            found.setdefault((host, one.port), refusal)
    return tuple(found.values())


def _hint(rule: str) -> str:
    if rule.startswith(LIMIT_RULE):
        return _CREATOR_LIMITS
    return _OPERATOR_OPENS if rule == _NOT_PUBLIC else _CREATOR_ALLOWS


def suggested(attempts: Iterable[NetworkAttempt], reachable: Iterable[str] = ()) -> tuple[str, ...]:
    """Return a rule for each host and port that was tried and that a rule can open."""
    return tuple(rule for rule, only in _tried(attempts, reachable) if not only)


def not_public(
    attempts: Iterable[NetworkAttempt], reachable: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return each host and port that was tried and that only `network.reachable` can open."""
    return tuple(rule for rule, only in _tried(attempts, reachable) if only)


def _tried(attempts: Iterable[NetworkAttempt], reachable: Iterable[str]) -> list[tuple[str, bool]]:
    """Return a rule for each host and port, and whether only the operator can open it."""
    networks = [ipaddress.ip_network(one, strict=False) for one in reachable]
    found: dict[tuple[str, int], bool] = {}
    for one in attempts:
        key = (one.host or one.address or "", one.port)
        if one.rule.startswith(LIMIT_RULE):
            continue
        if one.event in ("opened", "would_refuse"):
            found[key] = False
        elif one.event == "refused":
            # The address of a name is known only where a rule let the egress look it up.
            found[key] = one.rule == _NOT_PUBLIC or found.get(key, False)
            if one.host is None and one.address is not None:
                address = plain(one.address)
                closed = found[key] or not is_public(one.address)
                found[key] = closed and not any(address in network for network in networks)
    return [(rule_for(host, port), found[host, port]) for host, port in sorted(found)]


def rule_for(host: str, port: int) -> str:
    """Return the rule that allows exactly this host and port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _invalid(message: str, hint: str) -> InvalidRequest:
    return InvalidRequest(message, hint=hint, field="network")
