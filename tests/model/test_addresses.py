"""Which hosts are certainly this machine, which addresses are public, and text without any."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sandkasten.model.addresses import is_loopback, is_public, without_addresses


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("", False),
        ("0.0.0.0", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
        ("192.168.0.1", False),
    ],
)
def test_only_loopback_addresses_and_localhost_are_this_machine(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.parametrize("public", [True, False])
def test_the_same_addresses_are_public_as_in_the_egress(public):
    source = Path(__file__).parents[2] / "runner/src/egress/addresses.rs"
    name = "public_addresses_are_public" if public else "reserved_addresses_are_not_public"
    block = source.read_text().split(f"fn {name}()")[1].split("] {")[0]
    examples = re.findall(r'"([0-9a-f:.]+)"', block)
    assert len(examples) > 8
    assert [one for one in examples if is_public(one) is not public] == []


@pytest.mark.parametrize("one", ["192.0.0.1", "192.0.2.1", "192.88.99.1", "198.51.100.1"])
def test_special_addresses_are_not_public(one):
    assert not is_public(one)


@pytest.mark.parametrize(
    ("known", "text", "expected"),
    [
        (
            "tcp://192.0.2.7:2376",
            "no host 192.0.2.7:2376 [('192.0.2.7', 2376)]",
            "no host … [('…', 2376)]",
        ),
        ("tcp://engine.example:2376", "host engine.example:2376 is unknown", "host … is unknown"),
        ("tcp://engine:2376", "the engines at engine:2376 fail", "the engines at … fail"),
        ("ssh://me@box:22", "ssh to ssh://me@box:22: host box port 22", "ssh to …: host … port 22"),
        ("unix:///run/x.sock", "socket /run/x.sock: No such file", "socket …: No such file"),
        ("tcp://engine", "dial tcp [fd00::1]:80, fe80::1:2:3 or 10.1.2.3", "dial tcp …, … or …"),
        ("tcp://engine", "asked https://10.1.2.3/v1?a=b at 12:30:45", "asked … at 12:30:45"),
        ("tcp://engine", "version 1.2.3.4.5, 3 of 4: Connection refused", None),
        ("", "nothing listens", None),
        ("tcp://[bad", "nothing listens at tcp://[bad", "nothing listens at …"),
    ],
)
def test_a_message_keeps_its_reason_without_addresses(known, text, expected):
    assert without_addresses(text, [known]) == (text if expected is None else expected)
