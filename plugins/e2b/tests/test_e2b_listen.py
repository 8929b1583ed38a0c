"""The settings of E2B's protocol."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from sandkasten.errors import InvalidConfiguration
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_server.daemon.daemon_assembly import _check_exposure
from tests.client.http.served import KEY, served
from tests.loopback_port import free_port


def fetch(url: str) -> tuple[int, object]:
    request = urllib.request.Request(url, headers={"X-API-KEY": KEY})
    try:
        with urllib.request.urlopen(request) as found:
            return found.status, json.loads(found.read())
    except urllib.error.HTTPError as exc:
        return exc.code, json.loads(exc.read())["code"]


def test_the_protocol_has_an_address_of_its_own_without_the_prefix(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    with served(tmp_path / "data", SANDKASTEN_COMPAT_E2B_LISTEN=address) as daemon:
        assert fetch(f"http://{address}/sandboxes") == (200, [])
        assert fetch(f"{daemon.url}/e2b/sandboxes") == (200, [])
        # Nothing of our own API is there.
        assert fetch(f"http://{address}/v1/sessions") == (404, 404)
        assert fetch(f"http://{address}/../v1/sessions") == (404, 404)


def test_the_protocol_can_be_turned_off(tmp_path):
    with served(tmp_path / "data", SANDKASTEN_COMPAT_E2B_ENABLED="false") as daemon:
        assert fetch(f"{daemon.url}/e2b/sandboxes") == (401, "UNAUTHORIZED")


def test_an_address_beyond_loopback_requires_a_key():
    settings = load({"compat.e2b.listen": "0.0.0.0:8081"}, {})
    with pytest.raises(InvalidConfiguration) as caught:
        _check_exposure(settings, keyed=False)
    assert "0.0.0.0:8081" in caught.value.message
    _check_exposure(settings, keyed=True)
    _check_exposure(load({}, {}), keyed=False)
