"""Choosing the proxy of the environment for an address."""

from __future__ import annotations

import os
from urllib.request import getproxies_environment

import pytest

from sandkasten.model.proxies import Proxy, proxies_in, proxy_arguments, proxy_for

TOLD = {"http": "http://proxy:3128", "https": "http://me:p%40ss@proxy:3129", "no": "near,.inside"}


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8080",
        "http://127.0.0.1",
        "http://127.0.0.2",
        "https://[::1]:8443/x",
        "http://near/",
        "https://one.inside",
        "unix:///run/daemon.sock",
    ],
)
def test_these_hosts_bypass_the_proxy(url):
    assert proxy_arguments(url, TOLD) == {}


def test_other_hosts_use_the_proxy_of_their_scheme():
    assert proxy_arguments("http://far.example", TOLD) == {"proxy": "http://proxy:3128"}
    assert proxy_arguments("http://far.example", {}) == {}


def test_the_proxy_password_is_not_part_of_the_address():
    assert proxy_arguments("https://far.example", TOLD) == {
        "proxy": "http://proxy:3129",
        "proxy_headers": {"Authorization": "Basic bWU6cEBzcw=="},
    }


def test_a_proxy_without_a_scheme_is_reached_over_http():
    assert proxy_for("https://far.example", {"https": "proxy:3128"}) == Proxy("http://proxy:3128")
    login = proxy_for("https://far.example", {"https": "me:pw@proxy:3128"})
    assert login == Proxy("http://proxy:3128", "Basic bWU6cHc=")
    assert "Basic" not in repr(login)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {}),
        ({"HTTPS_PROXY": "a", "PATH": "/bin"}, {"https": "a"}),
        ({"https_proxy": "a", "HTTPS_PROXY": "b"}, {"https": "a"}),
        ({"HTTPS_PROXY": "b", "https_proxy": "a"}, {"https": "a"}),
        ({"HTTPS_PROXY": "b", "https_proxy": ""}, {}),
        ({"http_proxy": "a", "NO_PROXY": "near"}, {"http": "a", "no": "near"}),
    ],
)
def test_proxies_are_read_from_the_environment(environ, expected):
    assert proxies_in(environ) == expected
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.lower().endswith("_proxy"):
                patch.delenv(name)
        for name, value in environ.items():
            patch.setenv(name, value)
        assert getproxies_environment() == expected


def test_exceptions_of_the_environment_are_reached_directly():
    proxies = proxies_in({"https_proxy": "http://proxy:3128", "NO_PROXY": "inside.example"})
    assert proxy_for("https://h/v2/", proxies) == Proxy("http://proxy:3128")
    assert proxy_for("http://h/v2/", proxies) is None
    assert proxy_for("https://inside.example/v2/", proxies) is None
    assert proxy_for("https://localhost:5000/v2/", proxies) is None
