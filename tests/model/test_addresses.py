"""Which hosts are certainly this machine."""

from __future__ import annotations

import pytest

from sandkasten.model.addresses import is_loopback


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
