"""Settings of the network: presets, fixed names, name servers, and open private networks."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidConfiguration, InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.network_limits import NetworkLimits, read_limit, requested_limits
from sandkasten.model.sandbox.network_policy import NetworkCeiling
from sandkasten.model.sandbox.network_rules import PRESETS, parse_rule, refuse_bare_presets
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import (
    boolean,
    invalid,
    path_list,
    positive_integer,
    string_list,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

Lists = dict[str, tuple[str, ...]]


def network_rules(name: str, value: object) -> tuple[str, ...]:
    """Accept `none`, `full` or rules. Presets are checked when they are all known."""
    if value in ("none", "full"):
        return ("*",) if value == "full" else ()
    if isinstance(value, dict):
        if set(value) != {"allow"}:
            hint = "write a list: [api.example.com, preset:pypi]; requests get nothing else"
            raise invalid(name, "none, full or a list of rules", value, hint)
        value = value["allow"]
    rules = string_list(name, value)
    for rule in rules:
        if rule != "*" and not rule.startswith("preset:"):
            _checked_rule(name, rule)
    return rules


def _checked_rule(name: str, rule: str) -> str:
    try:
        return parse_rule(rule).text
    except InvalidRequest as exc:
        raise InvalidConfiguration(f"{name}: {exc.message}", hint=exc.hint, setting=name) from exc


def address_ranges(name: str, value: object) -> tuple[str, ...]:
    ranges = string_list(name, value)
    try:
        return tuple(str(ipaddress.ip_network(text, strict=False)) for text in ranges)
    except ValueError as exc:
        hint = "write [10.1.0.0/16, 192.0.2.7]"
        raise invalid(name, "a list of addresses or networks", value, hint) from exc


def server_list(name: str, value: object) -> tuple[str, ...]:
    servers = []
    for server in string_list(name, value):
        host, colon, port = (
            server.rpartition(":") if server.count(":") == 1 or "]" in server else (server, "", "")
        )
        try:
            address = ipaddress.ip_address(host.strip("[]"))
            number = int(port) if colon else 53
            if not 1 <= number <= 65_535:
                raise ValueError(port)
        except ValueError as exc:
            hint = 'write [192.0.2.53] or ["192.0.2.53:53"]'
            raise invalid(name, "a list of addresses of name servers", value, hint) from exc
        shown = f"[{address}]" if address.version == 6 else str(address)
        servers.append(f"{shown}:{number}")
    return tuple(servers)


def lists(name: str, value: object) -> Lists:
    """Accept a mapping of names to lists, or strings `name=one+two`."""
    if isinstance(value, dict):
        return {str(key): string_list(f"{name}.{key}", entries) for key, entries in value.items()}
    pairs = (item.partition("=") for item in string_list(name, value))
    return {key: tuple(text.split("+")) for key, _, text in pairs}


def host_addresses(name: str, value: object) -> Lists:
    hosts = lists(name, value)
    for host, addresses in hosts.items():
        _checked_rule(name, host)
        try:
            for address in addresses:
                ipaddress.ip_address(address)
        except ValueError as exc:
            hint = "write {example.com: [192.0.2.7]}; in a variable example.com=192.0.2.7"
            raise invalid(name, "names with their addresses", value, hint) from exc
    return {host.lower(): addresses for host, addresses in hosts.items()}


def host_rules(name: str, value: object) -> tuple[str, ...]:
    rules = string_list(name, value)
    for rule in rules:
        _checked_rule(name, rule)
        if parse_rule(rule).host is None or parse_rule(rule).partial:
            raise invalid(name, "a list of hosts", value, "write [example.com, '*.example.org']")
    return rules


def presets(name: str, value: object) -> Lists:
    rules_by_name = lists(name, value)
    for rules in rules_by_name.values():
        for rule in rules:
            _checked_rule(name, rule)
    return rules_by_name


def network_limit(field: str) -> Callable[[str, object], int]:
    """Return what accepts a whole number that a sandbox can have as this limit."""

    def parse(name: str, value: object) -> int:
        read = read_limit(field, value) if isinstance(value, str) else None
        number = positive_integer(name, value if read is None else read)
        try:
            requested_limits({field: number})
        except InvalidRequest as exc:
            raise InvalidConfiguration(exc.message, hint=exc.hint, setting=name) from exc
        return number

    return parse


def show_lists(value: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [f"{name}={'+'.join(items)}" for name, items in value.items()]


_DEFAULTS: Final = NetworkLimits()


@dataclass(frozen=True, slots=True)
class NetworkLimitSettings:
    """The limits of a sandbox, and the most that a request may ask for."""

    connections: int = setting(
        "network.limits.connections",
        network_limit("connections"),
        _DEFAULTS.connections,
        "Connections that a sandbox has at once, at most.",
    )
    bytes_in: int | None = setting(
        "network.limits.bytes_in",
        network_limit("bytes_in"),
        _DEFAULTS.bytes_in,
        "Bytes that a sandbox receives in total, at most; default: no limit.",
    )
    bytes_out: int | None = setting(
        "network.limits.bytes_out",
        network_limit("bytes_out"),
        _DEFAULTS.bytes_out,
        "Bytes that a sandbox sends in total, at most; default: no limit.",
    )
    bandwidth_bps: int | None = setting(
        "network.limits.bandwidth_bps",
        network_limit("bandwidth_bps"),
        _DEFAULTS.bandwidth_bps,
        "Bits per second of a sandbox, each way, at most; default: no limit.",
    )
    names_per_minute: int = setting(
        "network.limits.names_per_minute",
        network_limit("names_per_minute"),
        _DEFAULTS.names_per_minute,
        "Names that a sandbox looks up per minute, at most.",
    )
    idle_seconds: int = setting(
        "network.limits.idle_seconds",
        network_limit("idle_seconds"),
        _DEFAULTS.idle_seconds,
        "A connection without a byte for this long is closed.",
    )

    def limits(self) -> NetworkLimits:
        return NetworkLimits(**asdict(self))


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    reachable: tuple[str, ...] = setting(
        "network.reachable",
        address_ranges,
        (),
        "Networks that rules may open although their addresses are not public.",
    )
    servers: tuple[str, ...] = setting(
        "network.servers",
        server_list,
        (),
        "Name servers of sandboxes; default: those of this machine.",
    )
    hosts: Mapping[str, tuple[str, ...]] = setting(
        "network.hosts",
        host_addresses,
        {},
        "Names with fixed addresses, as in /etc/hosts.",
        show=show_lists,
    )
    presets: Mapping[str, tuple[str, ...]] = setting(
        "network.presets",
        presets,
        {},
        "Presets of rules in addition to the built-in ones.",
        show=show_lists,
    )

    uninspected: tuple[str, ...] = setting(
        "network.uninspected",
        host_rules,
        (),
        "Hosts whose TLS is never inspected, such as those of programs with a fixed certificate.",
    )
    ca_files: tuple[Path, ...] = setting(
        "network.ca_files",
        path_list,
        (),
        "Files of certificates that inspected servers may have, besides those of this machine.",
    )

    tls13: bool = setting(
        "network.tls13",
        boolean,
        False,
        "Refuse inspected servers that do not speak TLS 1.3.",
    )

    def ceiling(self, allow: tuple[str, ...] | None, limits: NetworkLimits) -> NetworkCeiling:
        """Return what the operator permits. `allow` is policy.network."""
        known_presets = {**PRESETS, **self.presets}
        for rule in allow or ():
            if rule.startswith("preset:") and rule.removeprefix("preset:") not in known_presets:
                raise InvalidConfiguration(
                    f"policy.network: there is no {rule}",
                    hint=f"known: {', '.join(sorted(known_presets))}",
                    setting="policy.network",
                )
        try:
            refuse_bare_presets(allow or (), known_presets, self.hosts)
        except InvalidRequest as exc:
            raise InvalidConfiguration(
                f"policy.network: {exc.message}", hint=exc.hint, setting="policy.network"
            ) from exc
        return NetworkCeiling(
            allow=allow,
            reachable=self.reachable,
            hosts=self.hosts,
            presets=known_presets,
            servers=self.servers,
            limits=limits,
            uninspected=self.uninspected,
            ca_files=tuple(os.fspath(file.absolute()) for file in self.ca_files),
            tls13=self.tls13,
        )
