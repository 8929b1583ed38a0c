"""Limits of a sandbox's network: reaching one is a refusal that names it."""

from __future__ import annotations

import socketserver
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import InvalidConfiguration, InvalidRequest, PolicyDenied
from sandkasten.model.sandbox.network_limits import NetworkLimits
from sandkasten.model.sandbox.network_policy import (
    NetworkCeiling,
    adopted_network,
    changed_network,
    network_for,
    parse_network,
)
from sandkasten_agents.definitions.sandbox_field import parse_sandbox
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_server.cli.exit_status import UsageError
from sandkasten_server.cli.quantities import limit, network_limit
from tests.network.conftest import served
from tests.network.name_server import NameServer

if TYPE_CHECKING:
    from collections.abc import Iterator

MEGABYTE = 1_000_000


class _Large(socketserver.BaseRequestHandler):
    """Sends two megabytes, then reads to the end."""

    def handle(self) -> None:
        try:
            self.request.sendall(b"x" * (2 * MEGABYTE))
            while self.request.recv(65536):
                pass
        except OSError:
            pass


@pytest.fixture
def large() -> Iterator[int]:
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Large)
    server.daemon_threads = True
    with served(server) as port:
        yield port


def test_limits_are_read_and_written():
    value = {"allow": ["a.test"], "limits": {"connections": 3, "bytes_in": 10}}
    policy = parse_network(value)
    assert policy.public() == value
    assert (policy.limits.connections, policy.limits.idle_seconds) == (3, 900)
    full = parse_network({"allow": ["*"], "limits": {"bandwidth_bps": 8}})
    assert full.full
    assert parse_network(full.public()) == full


@pytest.mark.parametrize(
    "limits", [7, {"conections": 1}, {"connections": 0}, {"connections": True},
               {"bytes_in": -1}, {"bytes_in": 1.5}, {"connections": 5000}, {"bytes_in": "1"}],
)  # fmt: skip
def test_invalid_limits_are_refused(limits):
    with pytest.raises(InvalidRequest):
        parse_network({"allow": ["a.test"], "limits": limits})


def test_a_request_never_gets_more_than_the_operator_permits():
    most = NetworkLimits(connections=8, bytes_in=100)
    ceiling = NetworkCeiling(limits=most)
    assert network_for("full", ceiling, operator=True).limits == most
    less = network_for({"allow": ["a.test"], "limits": {"bytes_in": 7}}, ceiling, operator=True)
    assert (less.limits.bytes_in, less.limits.connections) == (7, 8)
    for name, value in (("connections", 9), ("bytes_in", 101)):
        with pytest.raises(PolicyDenied) as refused:
            network_for({"allow": ["a.test"], "limits": {name: value}}, ceiling, operator=True)
        assert refused.value.details["rule"] == f"network.limits.{name}"


def test_stricter_settings_lower_the_limits_of_a_live_sandbox():
    value = {"allow": ["a.test"], "limits": {"connections": 300, "bytes_in": 5}}
    found = adopted_network(value, NetworkCeiling(limits=NetworkLimits(connections=8, bytes_in=9)))
    assert (found.limits.connections, found.limits.bytes_in) == (8, 5)


def test_settings_are_the_defaults(tmp_path):
    found = load({"network.limits.bytes_out": "500"}, {}, tmp_path).policy.network.limits
    assert found == NetworkLimits(bytes_out=500)
    with pytest.raises(InvalidConfiguration):
        load({"network.limits.connections": "100000"}, {}, tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("connections", "4", 4), ("bytes_in", "1G", 1 << 30), ("bytes_out", "500", 500),
        ("bandwidth_bps", "10M", 10_000_000), ("names_per_minute", "7", 7),
        ("idle_seconds", "15m", 900),
    ],
)  # fmt: skip
def test_every_limit_has_a_variable_a_flag_and_a_field_of_an_agent(tmp_path, name, text, value):
    variable = f"SANDKASTEN_NETWORK_LIMITS_{name.upper()}"
    limits = load({}, {variable: text}, tmp_path).policy.network.limits
    assert getattr(limits, name) == value
    assert network_limit(name, text) == value
    asked = {"network": {"allow": ["a.test"], "limits": {name: text}}}
    sandbox, _ = parse_sandbox(asked)
    assert sandbox.options.network == {"allow": ["a.test"], "limits": {name: value}}


@pytest.mark.parametrize("text", ["x", "", "1.5", "10X", "9" * 400, "²", "-1"])
def test_a_limit_that_is_not_a_number_is_refused(text):
    with pytest.raises(UsageError) as refused:
        network_limit("connections", text)
    assert "--network-limit connections" in refused.value.message


def test_limits_of_the_network_and_of_the_sandbox_are_told_apart():
    with pytest.raises(UsageError) as refused:
        limit("connections", "4")
    assert refused.value.hint == "--network-limit connections=4"
    with pytest.raises(UsageError) as refused:
        network_limit("mem_limit_mb", "4")
    assert "limit of a network" in refused.value.message


@pytest.mark.parametrize("value", [{"limits": {"connections": 1}}, {"deny": ["a.test"]}])
def test_limits_and_deny_rules_require_allow_rules(value):
    with pytest.raises(InvalidRequest) as refused:
        parse_network(value)
    assert "--allow" in refused.value.hint


@pytest.mark.parametrize("more", [{"limits": {"connections": 1}}, {"dry_run": True}])
def test_an_update_never_drops_rules_silently(more):
    with pytest.raises(InvalidRequest) as refused:
        changed_network(more, NetworkCeiling(), operator=True)
    assert "--allow" in refused.value.hint
    kept = changed_network({"allow": ["a.test"], **more}, NetworkCeiling(), operator=True)
    assert kept.allow == ("a.test",)
    assert changed_network({"allow": []}, NetworkCeiling(), operator=True).closed


@pytest.mark.promise("P75")
@pytest.mark.root
def test_bytes_and_connections_are_limited_and_can_be_raised(boxed, large, echo):
    rules = {"allow": [f"good.test:{large}", f"good.test:{echo}"]}
    box = boxed(network={**rules, "limits": {"bytes_in": MEGABYTE, "connections": 2}})
    got = box.exec(f"bash -c 'exec 3<>/dev/tcp/good.test/{large}; cat <&3 | wc -c'")
    assert int(got.stdout) <= MEGABYTE
    assert [one.rule for one in got.refused] == ["limit:bytes_in"]
    assert "network.limits" in got.refused[0].hint
    told = box.exec(["curl", "-sS", f"http://good.test:{echo}/"])
    assert "(limit:bytes_in)" in told.output
    status = box.network()
    assert (status.bytes_in, status.refused, status.suggested) == (
        MEGABYTE,
        2,
        (f"good.test:{large}",),
    )
    box.update(network={**rules, "limits": {"connections": 2}})
    three = "; ".join(f"exec {n}<>/dev/tcp/good.test/{echo} && head -1 <&{n}" for n in (3, 4, 5))
    done = box.exec(["bash", "-c", three])
    assert done.stdout == "READY\nREADY\n"
    assert [one.rule for one in done.refused] == ["limit:connections"]
    # They are free again.
    assert box.exec(["bash", "-c", f"head -1 </dev/tcp/good.test/{echo}"]).stdout == "READY\n"


@pytest.mark.root
def test_bytes_that_are_sent_are_limited(boxed, echo):
    limits = {"bytes_out": 1000}
    box = boxed(network={"allow": [f"good.test:{echo}"], "limits": limits})
    # The connection is closed at the limit, which ends `cat`.
    send = f"exec 3<>/dev/tcp/good.test/{echo}; head -c 100000 /dev/zero >&3; cat <&3"
    done = box.exec(["bash", "-c", send])
    assert [one.rule for one in done.refused] == ["limit:bytes_out"]
    assert box.network().bytes_out == 1000


@pytest.mark.root
def test_bandwidth_is_limited(boxed, large):
    limits = {"bandwidth_bps": 16 * MEGABYTE}
    box = boxed(network={"allow": [f"good.test:{large}"], "limits": limits})
    read = f"exec 3<>/dev/tcp/good.test/{large}; head -c {2 * MEGABYTE} <&3 | wc -c"
    done = box.exec(["bash", "-c", read])
    assert int(done.stdout) == 2 * MEGABYTE
    # Two megabytes per second, and a burst of an eighth of a second at the start.
    assert done.duration_ms >= 800


@pytest.mark.root
def test_a_silent_connection_is_closed(boxed, echo):
    limits = {"idle_seconds": 1}
    box = boxed(network={"allow": [f"good.test:{echo}"], "limits": limits})
    assert box.exec(["bash", "-c", f"cat </dev/tcp/good.test/{echo}"]).stdout == "READY\n"
    assert box.network_log()[-1].reason == "limit:idle_seconds"


@pytest.mark.root
def test_lookups_are_limited(boxed, monkeypatch):
    """Data hidden in names leaves at most this fast, and names without a rule not at all."""
    server = NameServer(lambda name, kind: [])
    with served(server):
        monkeypatch.setenv("SANDKASTEN_NETWORK_SERVERS", server.address)
        network = {"allow": ["*.tunnel.test"], "limits": {"names_per_minute": 5}}
        box = boxed(network=network)
        code = """
import socket
for n in range(40):
    for name in (f"{'x' * 60}.{n}.tunnel.test", f"secret{n}.other.test"):
        try:
            socket.getaddrinfo(name, 80, socket.AF_INET)
        except OSError:
            pass
"""
        done = box.exec(["python3", "-c", code])
        assert done.exit_code == 0, done
        assert "limit:names_per_minute" in {one.rule for one in done.refused}
    assert len(set(server.asked)) == 5
    assert not [one for one in server.asked if "other" in one]
