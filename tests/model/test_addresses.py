"""Which hosts are certainly this machine, and which addresses are public."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sandkasten.model.addresses import is_loopback, is_public


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
