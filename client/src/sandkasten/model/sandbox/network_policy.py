"""The network policy of a sandbox: none, full, or rules by name. Pure.

A rule is `host`, `*.host`, `host:port`, an address or a network (`192.0.2.0/24`,
`[2001:db8::1]:443`) or `preset:name`; with inspection also `METHOD host/path*`. A deny rule wins
over an allow rule. Addresses that are not public are decided only by the operator
(`NetworkCeiling.reachable`).
"""

from __future__ import annotations

import ipaddress
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import PolicyDenied, UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.addresses import holds_public
from sandkasten.model.json_codec import ShapeError, Timestamp, from_json
from sandkasten.model.sandbox.network_limits import (
    MAX_USED_SECRETS,
    Allowance,
    NetworkLimits,
    lowered,
    requested_limits,
    within,
)
from sandkasten.model.sandbox.network_rules import (
    PRESETS,
    covers,
    invalid_network,
    parse_rule,
    refuse_bare_presets,
    rules_of,
)
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_RULES: Final = 256
_KEYS: Final = ("allow", "deny", "secrets", "inspect", "dry_run", "limits")
OPERATOR_OPENS: Final = "only the operator opens addresses that are not public (network.reachable)"
_SANDBOX_ITSELF: Final = (
    "localhost and 127.0.0.1 in a sandbox are the sandbox itself. For a server on this machine the "
    "operator sets network.hosts (web.internal=127.0.0.1) and network.reachable (127.0.0.1/32), "
    "and a rule names web.internal"
)
SILENT_HINT: Final = "try again; if the error stays, create a new sandbox"
"""For a network that lives and does not answer."""


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """The destinations that one sandbox may reach, and its limits. The default is none."""

    full: bool = False
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    dry_run: bool = False
    limits: NetworkLimits = NetworkLimits()
    requested_limits: Mapping[str, int] = field(default_factory=dict)
    """The limits that the request named."""
    secrets: tuple[str, ...] = ()
    inspect: bool = False
    allowance: Allowance | None = None
    """What is left of the tenant's quota; None keeps the allowance that was set before."""

    @property
    def closed(self) -> bool:
        return not (self.full or self.allow or self.dry_run)

    @property
    def inspected(self) -> bool:
        return self.inspect or bool(self.secrets)

    def public(self) -> str | dict[str, Any]:
        """Return the policy in the form of the HTTP API."""
        if self.closed:
            return "none"
        if self.full and not (self.deny or self.dry_run or self.requested_limits or self.inspected):
            return "full"
        body: dict[str, Any] = {"allow": ["*"] if self.full else list(self.allow)}
        if self.deny:
            body["deny"] = list(self.deny)
        if self.secrets:
            body["secrets"] = list(self.secrets)
        if self.inspect:
            body["inspect"] = True
        if self.dry_run:
            body["dry_run"] = True
        if self.requested_limits:
            body["limits"] = dict(self.requested_limits)
        return body


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
    """Attempts that were allowed, but the lookup failed or the server could not be reached."""
    would_refuse: int = 0
    """Connections and requests that only a dry run allowed."""
    suggested: tuple[str, ...] = ()
    """A rule for each host and port that it tried to reach and that a rule can open."""
    not_public: tuple[str, ...] = ()
    """Attempts to reach what only the operator can open, with `network.reachable`."""


@dataclass(frozen=True, slots=True)
class NetworkAttempt:
    """One record of the log. `event` is `opened`, `closed`, `refused` or `failed` for a connection,
    `request` for a request on an inspected one, and `would_refuse` for what a dry run allowed
    although `rule` refuses it.
    """

    seq: int
    at: Timestamp
    event: str
    port: int
    rule: str = ""
    """The rule that decided; `default` if no rule did."""
    allowed: bool = False
    """False with `opened`: only a dry run allowed it."""
    connection: int = 0
    host: str | None = None
    address: str | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    ms: int | None = None
    reason: str | None = None
    method: str | None = None
    path: str | None = None
    """The path of an inspected request, without its query."""


@dataclass(frozen=True, slots=True)
class NetworkCeiling:
    """The operator's limits: what requests may have, and which other addresses they may open."""

    allow: tuple[str, ...] | None = None
    """Rules; `*` allows any public address, an empty tuple none. None: the operator's own requests
    may have any public address, and requests with a key none."""
    reachable: tuple[str, ...] = ()
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    presets: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: PRESETS)
    servers: tuple[str, ...] = ()
    """Name servers; empty: those of this machine."""
    limits: NetworkLimits = NetworkLimits()
    """The defaults and maxima of a sandbox."""
    uninspected: tuple[str, ...] = ()
    """Hosts whose connections are not inspected in an inspected sandbox."""
    ca_files: tuple[str, ...] = ()
    """Files with further authorities for the certificates of inspected servers."""
    tls13: bool = False
    """Whether inspected servers must speak TLS 1.3."""


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
        raise invalid_network(
            f"{shown(str(value))} is not a valid network",
            "use none, full, or {allow: [example.com]} (--allow example.com)",
        )
    for key in value:
        if key not in _KEYS:
            raise invalid_network(
                f"network has no field {shown(str(key))}", did_you_mean(str(key), _KEYS)
            )
    allow, deny = (_rules(value.get(key), key, presets) for key in ("allow", "deny"))
    dry_run, inspect = (_flag(value, key) for key in ("dry_run", "inspect"))
    full = "*" in allow
    limits = requested_limits(value.get("limits"))
    secrets = _secret_names(value.get("secrets"))
    rules, granted = () if full else allow, within(limits, most)
    policy = NetworkPolicy(full, rules, deny, dry_run, granted, limits, secrets, inspect)
    partial = [text for text in (*policy.allow, *deny) if parse_rule(text).partial]
    if partial and not inspect:
        raise invalid_network(
            f"rule {shown(partial[0])} requires inspect: true",
            "add inspect: true (--inspect), or write the host without a method and a path",
        )
    if policy.closed and (deny or limits):
        raise invalid_network(
            f"network.{'limits' if limits else 'deny'} requires network.allow",
            "name the rules too, also if they stay as they are: --allow example.com",
        )
    if policy.inspected and policy.closed:
        raise invalid_network(
            "network.secrets and network.inspect require network.allow",
            "add the hosts: --allow api.example.com",
        )
    return policy


def _flag(value: Mapping[str, object], key: str) -> bool:
    flag = value.get(key, False)
    if not isinstance(flag, bool):
        raise invalid_network(f"network.{key} must be true or false", "leave it out for false")
    return flag


def _secret_names(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    names = (
        [name for name in value if isinstance(name, str)] if isinstance(value, list | tuple) else []
    )
    if (
        not isinstance(value, list | tuple)
        or len(names) != len(value)
        or len(names) > MAX_USED_SECRETS
    ):
        raise invalid_network(
            f"network.secrets must be a list of at most {MAX_USED_SECRETS} names",
            'write a list such as ["GITHUB_TOKEN"]',
        )
    return tuple(dict.fromkeys(names))


def _rules(value: object, key: str, presets: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or len(value) > MAX_RULES:
        raise invalid_network(
            f"network.{key} must be a list of at most {MAX_RULES} rules",
            'write a list such as ["example.com", "preset:pypi"]',
        )
    texts: dict[str, None] = {}
    for item in value:
        if item == "*" and key == "allow":
            texts["*"] = None
            continue
        for rule in rules_of(item, presets):
            texts[rule.text] = None
    return tuple(texts)


def network_for(value: object, ceiling: NetworkCeiling, *, operator: bool) -> NetworkPolicy:
    """Return the policy that a request gets; PolicyDenied names the first rule it may not have."""
    policy = parse_network(value, ceiling.presets, ceiling.limits)
    refuse_bare_presets((*policy.allow, *policy.deny), ceiling.presets, ceiling.hosts)
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
        requested = parse_rule(text)
        if not any(covers(rule, requested) for rule in permitted):
            raise PolicyDenied(
                f"network rule {shown(text)} is not permitted here",
                hint=f"policy.network allows: {named}",
                field="network.allow",
                rule="policy.network",
            )
    return policy


def changed_network(value: object, ceiling: NetworkCeiling, *, operator: bool) -> NetworkPolicy:
    """Return the policy of an update; it replaces the old one completely."""
    named = isinstance(value, dict) and any(value[key] for key in value if key != "allow")
    if isinstance(value, dict) and named and not value.get("allow"):
        raise invalid_network(
            "a change of the network requires network.allow: it replaces all rules and limits",
            "name the rules too, also if they stay as they are: --allow example.com; "
            "--network none closes it",
        )
    return network_for(value, ceiling, operator=operator)


def unreachable_rules(policy: NetworkPolicy, ceiling: NetworkCeiling) -> tuple[str, ...]:
    """Return warnings about allowed addresses that cannot be reached."""
    opened = [ipaddress.ip_network(text, strict=False) for text in ceiling.reachable]
    inside, closed = [], []
    for rule in map(parse_rule, policy.allow):
        network = None if rule.network is None else ipaddress.ip_network(rule.network)
        if rule.host == "localhost" or (network is not None and network.is_loopback):
            inside.append(rule.text)
        elif (
            network is not None
            and not holds_public(str(network))
            and not any(network.overlaps(reachable) for reachable in opened)
        ):
            closed.append(rule.text)
    return tuple(
        f"{', '.join(rules[:8])} will not be reached: {reason}"
        for rules, reason in ((inside, _SANDBOX_ITSELF), (closed, OPERATOR_OPENS))
        if rules
    )


def adopted_network(value: object, ceiling: NetworkCeiling) -> NetworkPolicy:
    """Return the policy of a sandbox that was created under other settings."""
    if isinstance(value, dict) and "limits" in value:
        value = {**value, "limits": lowered(requested_limits(value["limits"]), ceiling.limits)}
    return parse_network(value, ceiling.presets, ceiling.limits)


def default_network(ceiling: NetworkCeiling, *, operator: bool) -> NetworkPolicy:
    """Return the widest permitted policy, for a request that names no network."""
    allowed = list(_allowed(ceiling, operator=operator))
    if not allowed:
        return CLOSED
    rules = [rule for text in allowed if text != "*" for rule in rules_of(text, ceiling.presets)]
    network = {"allow": allowed, "inspect": any(rule.partial for rule in rules)}
    return parse_network(network, ceiling.presets, ceiling.limits)


def _allowed(ceiling: NetworkCeiling, *, operator: bool) -> tuple[str, ...]:
    if ceiling.allow is not None:
        return ceiling.allow
    return ("*",) if operator else ()


def unsupported_network(backend: str) -> UnsupportedByBackend:
    """Return the error for a backend that cannot give a network by rule."""
    return UnsupportedByBackend(
        f"backend {backend} does not support a network",
        hint="use network: none, or a backend that supports it: sandkasten doctor --all lists what "
        "each can do",
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
