"""`packages.*` from a file or a variable, never printed with a login."""

from __future__ import annotations

import pytest

from sandkasten.errors import InvalidConfiguration
from sandkasten_build.packages.package_rules import PackageRules
from sandkasten_runtime.assembly.settings.resolver import load

FILE = """
packages:
  index_url: https://me:s3cret@pypi.example/simple
  find_links: /srv/wheels
  npm_registry: https://t0ken@npm.example
  allow: [pandas, "npm:lodash"]
  build: false
  timeout_seconds: 2m
  max_bytes: 1000000
"""


def test_the_default_installs_packages_as_pip_is_configured(tmp_path):
    assert load({}, {}, tmp_path).of(PackageRules) == PackageRules()
    assert PackageRules().enabled


def test_package_sources_are_read_from_the_file_and_credentials_never_shown(tmp_path):
    (tmp_path / "sandkasten.yaml").write_text(FILE)
    settings = load({}, {}, tmp_path)
    assert settings.of(PackageRules) == PackageRules(
        index_url="https://me:s3cret@pypi.example/simple",
        find_links="/srv/wheels",
        npm_registry="https://t0ken@npm.example",
        allow=("pandas", "npm:lodash"),
        build=False,
        timeout_s=120.0,
        max_bytes=1_000_000,
    )
    shown = {
        origin.name: origin.value
        for origin in settings.origins()
        if origin.name.startswith("packages")
    }
    assert shown == {
        "packages.enabled": True,
        "packages.index_url": "https://pypi.example/simple",
        "packages.find_links": "/srv/wheels",
        "packages.npm_registry": "https://npm.example",
        "packages.allow": ["pandas", "npm:lodash"],
        "packages.build": False,
        "packages.timeout_seconds": 120.0,
        "packages.max_bytes": 1_000_000,
    }
    assert "s3cret" not in repr(settings)
    assert "t0ken" not in repr(settings)


def test_a_variable_disables_packages(tmp_path):
    assert not load({}, {"SANDKASTEN_PACKAGES_ENABLED": "no"}, tmp_path).of(PackageRules).enabled


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("index_url", "pypi.example"),
        ("index_url", "file:///srv/s3cret"),
        ("index_url", "https://s3cret@:99999/"),
        ("npm_registry", "ftp://s3cret@npm.example"),
        ("npm_registry", "https://s3cret@npm.example/ --x"),
        ("npm_registry", "https://s3cret@npm.example/\0"),
        ("index_url", "https://s3cret@pypi.example/" + "x" * 5000),
        ("find_links", "s3cret/wheels"),
        ("find_links", "/srv/s3cret wheels"),
        ("timeout_seconds", "0"),
        ("timeout_seconds", "2d"),
        ("max_bytes", "0"),
        ("enabled", "perhaps"),
    ],
)
def test_an_invalid_package_setting_is_refused_by_name_without_the_address(tmp_path, name, value):
    with pytest.raises(InvalidConfiguration) as refused:
        load({f"packages.{name}": value}, {}, tmp_path)
    assert refused.value.details["setting"] == f"packages.{name}"
    assert "s3cret" not in str(refused.value)
