"""Refusals of a sandbox's network: text, hint, and the rule that would allow each. Pure.

Every client shows what is decided here: the command line, HTTP, the SDKs and the tools of an agent.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final, NamedTuple

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.addresses import is_public, plain
from sandkasten.model.sandbox.network_limits import LIMIT_RULE, limit_hint
from sandkasten.model.sandbox.network_policy import OPERATOR_OPENS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandkasten.model.sandbox.network_policy import NetworkAttempt

    _Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# The rule in a record if no rule decided.
_NO_RULE: Final = "default"
# The prefix of the rule in a record, if a deny rule refused the connection.
_DENY_RULE: Final = "deny "
# The rule in the record of an address that the egress process did not dial.
_NOT_PUBLIC: Final = "address that is not public"
# The rule in the record of a host of a secret that got another protocol than TLS and HTTP.
_NOT_SEARCHED: Final = "another protocol to the host of a secret; a rule must name its port"
# Refused because no rule names the host and port, so that one more rule opens them.
_MISSING_RULE: Final = (_NO_RULE, _NOT_SEARCHED)
UNRESOLVED: Final = ("no such name", "no name server answered", "the name has no address")
"""Reasons in the records of names that could not be looked up."""
_MAX_REFUSALS: Final = 20
_CREATOR_ALLOWS: Final = "the creator of the sandbox can allow it (network.allow)"
_BOTH_OPEN: Final = (
    "the address is not public: the operator must open it (network.reachable), and a rule must "
    "allow it (network.allow)"
)
_CHECK_NAME: Final = "check the spelling of the name; the rules allow it"
_NO_SERVER: Final = "retry; the operator sets the name servers (network.servers)"
_DENIED: Final = "a deny rule refuses it; the creator of the sandbox can remove it (network.deny)"
# For refusals that no rule of the sandbox changes, by the rule in their record.
_HINTS: Final = {
    _NOT_PUBLIC: OPERATOR_OPENS,
    "bytes that are neither TLS nor HTTP": "an inspected host gets only TLS and HTTP on ports 80 "
    "and 443; the operator can leave it out (network.uninspected)",
    "a server that sends before the client": "an inspected host gets TLS and HTTP only from the "
    "beginning; the operator can leave it out (network.uninspected)",
    "too many bodies for secrets": "send fewer requests with bodies at a time",
    "secret without TLS": "use https: a secret is never sent over plain HTTP",
    "the client names another host": "send the requests to each host on a connection of its own",
    "the client does not name its host clearly": "send HTTP with one Host header, or TLS with a "
    "server name",
    "TLS without a server name": "send the name of the host in the TLS handshake (SNI)",
    "a path that is not in its plain form": "send the path without .., //, ; and without escapes "
    "for dots, slashes and percent signs",
    "a header that names another method, path or host": "send the request without this header",
}
_NO_NETWORK: Final = (
    "the sandbox was created without a network; if the command needs one, create a new sandbox "
    "that names what it may reach (network.allow, --allow HOST)"
)
# Messages of programs that cannot reach a network: curl, Python, git, apt, npm, Node, Go and Rust.
_NETWORK_FAILURES: Final = (
    b"Could not resolve",
    b"could not resolve",
    b"unable to resolve host",
    b"name resolution",
    b"Temporary failure resolving",
    b"Name or service not known",
    b"Network is unreachable",
    b"network is unreachable",
    b"EAI_AGAIN",
    b"ENETUNREACH",
    b"dial tcp: lookup",
    b"failed to lookup address",
)
# The reason of a failure is near the end of the output.
_LOOKED_AT_BYTES: Final = 8192


@dataclass(frozen=True, slots=True)
class Refusal:
    """A connection that the network of the sandbox refused, or a name that did not resolve."""

    host: str
    """The name, or the address if the program connected to an address."""
    port: int
    rule: str = ""
    hint: str = ""
    address: str | None = None
    """The address of the name, if it was looked up."""
    allow: str | None = None
    """The rule that allows it, if it is added to those of the sandbox; None if no rule does."""

    @property
    def unresolved(self) -> bool:
        """Whether the name did not resolve, so that no rule refused it."""
        return self.rule in UNRESOLVED

    @property
    def text(self) -> str:
        """The refusal as text for people."""
        if self.unresolved:
            return f"the network could not look up {self.host} ({self.rule})"
        to = destination(self.host, self.address, self.port)
        return f"the network refused {to}: {rule_text(self.rule)}"


class _Remedy(NamedTuple):
    hint: str
    allow: str | None = None


def refusals(
    attempts: Iterable[NetworkAttempt], reachable: Iterable[str] = ()
) -> tuple[Refusal, ...]:
    """Return each host and port that was refused once, and how it could be reached.

    A name that could not be looked up is one of them, with the reason as its rule. `reachable` are
    the operator's addresses that are not public.
    """
    networks = _networks(reachable)
    by_target: dict[tuple[str, int], Refusal] = {}
    for attempt in attempts:
        reason = (
            attempt.reason if attempt.event == "failed" and attempt.reason in UNRESOLVED else None
        )
        if (attempt.event == "refused" or reason) and len(by_target) < _MAX_REFUSALS:
            host = attempt.host or attempt.address or ""
            remedy = _remedy(attempt, networks)
            refusal = Refusal(
                host,
                attempt.port,
                reason or attempt.rule,
                remedy.hint,
                address=attempt.address if attempt.host else None,
                allow=remedy.allow,
            )
            by_target.setdefault((host, attempt.port), refusal)
    return tuple(by_target.values())


def _remedy(refused: NetworkAttempt, reachable: list[_Network]) -> _Remedy:
    if refused.reason in UNRESOLVED:
        return _Remedy(_NO_SERVER if refused.reason == UNRESOLVED[1] else _CHECK_NAME)
    if refused.rule.startswith(LIMIT_RULE):
        return _Remedy(limit_hint(refused.rule))
    if refused.rule.startswith(_DENY_RULE):
        return _Remedy(_DENIED)
    if refused.rule in _HINTS:
        return _Remedy(_HINTS[refused.rule])
    if refused.host is None and _closed(refused.address, reachable):
        return _Remedy(_BOTH_OPEN)
    host = refused.host or refused.address
    if host is None or refused.rule not in _MISSING_RULE:
        return _Remedy(_CREATOR_ALLOWS)
    return _Remedy(_CREATOR_ALLOWS, rule_for(host, refused.port))


def no_network_hint(network: object, exit_code: int | None, output: bytes) -> str:
    """Return the hint for a command that probably failed for want of a network; else an empty one.

    `network` is that of a sandbox that was created with it. Only the output shows what the command
    tried: nothing that could refuse a connection is there.
    """
    if network != "none" or not exit_code:
        return ""
    end = output[-_LOOKED_AT_BYTES:]
    return _NO_NETWORK if any(words in end for words in _NETWORK_FAILURES) else ""


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
    networks = _networks(reachable)
    by_target: dict[tuple[str, int], bool] = {}
    for attempt in attempts:
        key = (attempt.host or attempt.address or "", attempt.port)
        if attempt.rule.startswith(LIMIT_RULE) or (
            attempt.rule in _HINTS and attempt.rule != _NOT_PUBLIC
        ):
            continue  # A rule allows the host already, or does not matter.
        if attempt.rule.startswith(_DENY_RULE):
            by_target.pop(key, None)  # An allow rule would not open it.
            continue
        if attempt.event in ("opened", "would_refuse"):
            by_target[key] = False
        elif attempt.event == "refused" and attempt.method is None:
            # The address of a name is known only where a rule let the egress look it up.
            by_target[key] = attempt.rule == _NOT_PUBLIC or by_target.get(key, False)
            if attempt.host is None and attempt.address is not None:
                by_target[key] = (by_target[key] or not is_public(attempt.address)) and not _in(
                    attempt.address, networks
                )
    return [(rule_for(host, port), by_target[host, port]) for host, port in sorted(by_target)]


def rule_for(host: str, port: int) -> str:
    """Return the rule that allows exactly this host and port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def rule_text(rule: str) -> str:
    """Return the rule of a record for people."""
    return "no rule allows it" if rule == _NO_RULE else rule


def destination(host: str | None, address: str | None, port: int) -> str:
    """Return a name and port, and beside them the address if the name has one."""
    beside = f" ({address})" if host and address else ""
    return f"{host or address}:{port}{beside}"


def _networks(texts: Iterable[str]) -> list[_Network]:
    return [ipaddress.ip_network(text, strict=False) for text in texts]


def _closed(address: str | None, reachable: list[_Network]) -> bool:
    """Return whether only the operator can open this address, and has not."""
    return address is not None and not is_public(address) and not _in(address, reachable)


def _in(address: str, networks: list[_Network]) -> bool:
    host = plain(address)
    return any(host in network for network in networks)
