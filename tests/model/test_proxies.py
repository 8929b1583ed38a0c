"""Choosing the proxy of the environment for an address."""

from __future__ import annotations

import pytest

from sandkasten.model.proxies import proxy_of

TOLD = {"http": "http://proxy:3128", "https": "http://me:p%40ss@proxy:3129", "no": "near,.inside"}


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8080",
        "http://127.0.0.1",
        "https://[::1]:8443/x",
        "http://near/",
        "https://one.inside",
        "unix:///run/daemon.sock",
    ],
)
def test_these_hosts_bypass_the_proxy(url):
    assert proxy_of(url, TOLD) == {}


def test_other_hosts_use_the_proxy_of_their_scheme():
    assert proxy_of("http://far.example", TOLD) == {"proxy": "http://proxy:3128"}
    assert proxy_of("http://far.example", {}) == {}


def test_the_proxy_password_is_not_part_of_the_address():
    assert proxy_of("https://far.example", TOLD) == {
        "proxy": "http://proxy:3129",
        "proxy_headers": {"Authorization": "Basic bWU6cEBzcw=="},
    }
