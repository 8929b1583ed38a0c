"""Settings `backends.e2b.*`: the key is never shown, and never sent over plain http."""

from __future__ import annotations

import pytest

from sandkasten.errors import InvalidConfiguration
from sandkasten_runtime.assembly.settings.resolver import load

pytestmark = pytest.mark.promise("P115")


@pytest.mark.parametrize("name", ["api_url", "sandbox_url"])
def test_plain_http_is_for_this_machine_alone(tmp_path, name):
    for url in ("http://127.0.0.1:8080/e2b", "http://[::1]:80", "http://localhost", "https://a.b"):
        settings = load({f"backends.e2b.{name}": f"{url}/"}, {}, tmp_path)
        assert getattr(settings.plugins["e2b"], name) == url
    for url in ("http://10.0.0.7:8080", "http://api.e2b.app", "http://127.0.0.1.example.com"):
        with pytest.raises(
            InvalidConfiguration, match=f"backends.e2b.{name}.*plain http"
        ) as refused:
            load({f"backends.e2b.{name}": url}, {}, tmp_path)
        assert "https://" in refused.value.hint


def test_key_is_never_shown(tmp_path):
    settings = load({}, {"E2B_API_KEY": "e2b_secret"}, tmp_path)
    assert settings.plugins["e2b"].api_key == "e2b_secret"
    assert "e2b_secret" not in repr(settings) + repr(settings.origins()) + repr(
        settings.plugins["e2b"]
    )


def test_service_with_two_urls_and_no_domain_names_ports_below_localhost(tmp_path):
    urls = {
        "backends.e2b.api_url": "http://127.0.0.1:8090/e2b",
        "backends.e2b.sandbox_url": "http://127.0.0.1:8090/e2b",
    }
    assert load(urls, {}, tmp_path).plugins["e2b"].domain == "localhost"
    named = load({**urls, "backends.e2b.domain": "boxes.example"}, {}, tmp_path)
    assert named.plugins["e2b"].domain == "boxes.example"
    assert load({}, {}, tmp_path).plugins["e2b"].domain == ""
