"""Settings `backends.fly.*`: the token is never shown, and values that Fly does not accept are
refused.
"""

from __future__ import annotations

import pytest

from sandkasten.errors import InvalidConfiguration
from sandkasten_cloud.fly.fly_options import FlyOptions
from sandkasten_runtime.assembly.settings.resolver import load

TOKEN = "FlyV1 fm2_lJPECAAAAA,fm2_lJPEBBBBB"
FILE = """
backends:
  fly:
    app: my-sandboxes
    region: ams
    cpu_kind: performance
    reach: private
    lifetime_seconds: 2h
"""
pytestmark = pytest.mark.promise("P117")


def test_without_settings_fly_has_neither_an_app_nor_a_token(tmp_path):
    assert load({}, {}, tmp_path).plugins["fly"] == FlyOptions()


def test_fly_is_read_from_the_file_and_its_token_is_never_shown(tmp_path):
    (tmp_path / "sandkasten.yaml").write_text(FILE)
    settings = load({}, {"FLY_API_TOKEN": f"{TOKEN}\n"}, tmp_path)
    section = settings.plugins["fly"]
    assert (section.app, section.region, section.reach) == ("my-sandboxes", "ams", "private")
    assert (section.cpu_kind, section.lifetime_s) == ("performance", 7200)
    assert section.api_token == TOKEN
    shown = repr(
        [origin for origin in settings.origins() if origin.name.startswith("backends.fly")]
    )
    assert "fm2_" not in shown + repr(settings) + repr(section)


def test_the_token_may_be_in_a_file_that_others_cannot_read(tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    values = {"backends.fly.api_token_file": str(file)}
    assert load(values, {}, tmp_path).plugins["fly"].api_token == TOKEN
    file.chmod(0o644)
    with pytest.raises(InvalidConfiguration, match="accessible to every user"):
        load(values, {}, tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("app", "My Sandboxes"),
        ("region", "amsterdam"),
        ("cpu_kind", "fast"),
        ("reach", "exec"),
        ("address", "my-sandboxes.fly.dev/"),
        ("api_url", "https://api.machines.dev/v1"),
        ("api_url", "ftp://api.machines.dev"),
        ("api_url", "http://api.machines.dev"),
        ("image_programs_dir", "programs"),
        ("lifetime_seconds", "0"),
    ],
)
def test_a_value_that_fly_does_not_accept_is_refused(tmp_path, name, value):
    with pytest.raises(InvalidConfiguration, match=f"backends.fly.{name}") as raised:
        load({f"backends.fly.{name}": value}, {}, tmp_path)
    assert raised.value.hint


def test_a_token_that_cannot_be_one_is_refused_without_being_shown(tmp_path):
    with pytest.raises(InvalidConfiguration) as raised:
        load({}, {"FLY_API_TOKEN": "fm2_\x07secret"}, tmp_path)
    assert "secret" not in str(raised.value)
