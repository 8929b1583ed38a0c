"""E2B's published SDKs with `E2B_DOMAIN` alone: the daemon serves its names over TLS."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plugins.e2b.tests.domain_names import DOMAIN, Names, names_of_the_domain
from sandkasten.errors import InvalidConfiguration
from sandkasten_e2b.compat_settings import CompatSettings
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_server.api.previews.preview_rules import PreviewRules
from sandkasten_server.daemon.daemon_assembly import _check_exposure
from tests import environments
from tests.client.http.served import KEY, served

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(__file__).with_name("e2b_domain_drive.py")


@dataclass(frozen=True, slots=True)
class Domain:
    names: Names
    env: dict[str, str]
    """The environment of a program for E2B."""


@contextmanager
def daemon_with_a_domain() -> Iterator[Domain]:
    with (
        tempfile.TemporaryDirectory(prefix="pytest-of-domain-", dir="/var/tmp") as place,
        names_of_the_domain(Path(place)) as names,
        served(
            Path(place) / "data",
            backend="local",
            SANDKASTEN_COMPAT_DOMAIN=DOMAIN,
            SANDKASTEN_PREVIEWS_DOMAIN=DOMAIN,
            SANDKASTEN_PREVIEWS_LISTEN=f"{names.address}:443",
        ),
    ):
        authority = f"{place}/data/previews/{DOMAIN}/ca.pem"
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        trusted = {"SSL_CERT_FILE": authority, "NODE_EXTRA_CA_CERTS": authority}
        yield Domain(names, {**kept, **trusted, "E2B_DOMAIN": DOMAIN, "E2B_API_KEY": KEY})


@pytest.mark.promise("P79")
def test_the_python_sdk_needs_only_the_domain():
    with daemon_with_a_domain() as domain:
        done = domain.names.run([str(environments.compat()), "-I", str(PROGRAM)], domain.env)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    the_id = seen.pop("id")
    # As in a host name: OpenSSL does not match an underscore with a wildcard.
    assert the_id.startswith("sbx-")
    assert seen == {
        "host": f"8000-{the_id}.{DOMAIN}",
        "run": "42\n",
        "read": "grüße",
        "url": "grüße",
        "other port": "grüße",
        "listed": [True],
        "again": [True, True],
        "contexts": ["default_python", "/home/user", "42", 1, True],
        "port": 200,
        "no token": 401,
        "false token": 401,
        "key": 401,
        "our api": 404,
        "other sandbox": 401,
        "public": [200, "own.example:8000"],
        "closed": 403,
        "woken": ["paused", 401, "paused", 200],
        "kill": [True, False],
    }


def test_the_domain_of_the_sdks_is_that_of_previews():
    both = {"compat.domain": "one.example.com", "previews.domain": "two.example.com"}
    with pytest.raises(InvalidConfiguration, match="differ"):
        load(both, {})
    same = load({**both, "previews.domain": "one.example.com:8443"}, {})
    assert same.of(CompatSettings).told_domain(same.of(PreviewRules)) == "one.example.com:8443"


def test_the_address_of_the_domain_requires_a_key_where_it_serves_the_sdks():
    previews = {"previews.domain": DOMAIN, "previews.listen": "0.0.0.0:8443"}
    _check_exposure(load(previews, {}), keyed=False)
    with_sdks = load({**previews, "compat.domain": DOMAIN}, {})
    with pytest.raises(InvalidConfiguration) as caught:
        _check_exposure(with_sdks, keyed=False)
    assert "0.0.0.0:8443" in caught.value.message
    _check_exposure(with_sdks, keyed=True)
    _check_exposure(load({**previews, "compat.domain": DOMAIN}, {
        "SANDKASTEN_COMPAT_E2B_ENABLED": "false"}), keyed=False)  # fmt: skip
