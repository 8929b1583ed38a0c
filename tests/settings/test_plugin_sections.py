"""A plugin brings its section: the settings of a daemon are the sum of what is installed."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten.backends.backend_catalog import PLUGINS
from sandkasten.daemon.settings import resolver
from sandkasten.daemon.settings.backends import backend_names
from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.backends.capabilities import Capabilities
from sandkasten.model.optional_extras import SECTION_EXTRAS
from sandkasten.ports.backend_plugins import BackendPlugin
from sandkasten.settings.setting_fields import Origin, setting
from sandkasten.settings.setting_parsers import seconds, string

if TYPE_CHECKING:
    from sandkasten.ports.backend_plugins import SettingContext

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


@dataclass(frozen=True, slots=True)
class Options:
    host: str = setting("backends.other.host", string, "", "The host.")
    timeout_s: float = setting("backends.other.timeout_seconds", seconds, 5.0, "A timeout.")
    default: bool = False

    def completed(self, context: SettingContext) -> Options:
        if not self.host and context.environ.get("OTHER_NEEDS_A_HOST"):
            raise InvalidConfiguration("no host", hint="set it", setting="backends.other.host")
        return replace(self, default=context.default_backend == "other")


OTHER = BackendPlugin("other", Capabilities(1), lambda context: {}, settings=Options)


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "PLUGINS", (*PLUGINS, OTHER))


@pytest.mark.usefixtures("_installed")
def test_section_of_a_plugin_is_read_like_every_other_section(tmp_path: Path) -> None:
    file = tmp_path / "sandkasten.yaml"
    file.write_text("backends: {other: {timeout_seconds: 2m}}\n")
    settings = resolver.load({}, {"SANDKASTEN_OTHER_HOST": "far"}, tmp_path)
    assert settings.plugins["other"] == Options(host="far", timeout_s=120.0)
    assert settings.warnings == ()
    shown = {one.name: one for one in settings.origins()}
    assert shown["backends.other.host"] == Origin(
        "backends.other.host", "far", "env SANDKASTEN_OTHER_HOST"
    )
    assert shown["backends.other.timeout_seconds"].origin == f"file {file}"
    with pytest.raises(InvalidConfiguration, match="no host"):
        resolver.load({}, {"OTHER_NEEDS_A_HOST": "1"})


@pytest.mark.usefixtures("_installed")
def test_reference_contains_the_settings_of_a_plugin() -> None:
    rows = {one.name: one for one in resolver.documented()}
    assert rows["backends.other.timeout_seconds"].default == 5.0
    # A string that is not set is shown as such.
    assert rows["backends.other.host"].default is None


def test_settings_of_a_plugin_that_is_not_installed_are_unknown(tmp_path: Path) -> None:
    assert "other" not in resolver.load({}, {}, tmp_path).plugins
    with pytest.raises(InvalidConfiguration, match=r"backends\.other\.host"):
        resolver.load({"backends.other.host": "far"}, {}, tmp_path)


@pytest.fixture
def _without_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    left = tuple(one for one in PLUGINS if one.name != "docker")
    monkeypatch.setattr(resolver, "PLUGINS", left)
    monkeypatch.setattr(backend_names, "BACKENDS", tuple(one.name for one in left))


INSTALL = "pip install 'sandkasten-runtime[docker]'"


@pytest.mark.usefixtures("_without_docker")
@pytest.mark.parametrize(
    ("flags", "text", "setting"),
    [
        ({}, "backends: {docker: {host: 'unix:///s'}}\n", "backends.docker"),
        ({"backends.docker.host": "unix:///s"}, "", "backends.docker.host"),
        ({"backend": "docker"}, "", "backend"),
    ],
    ids=["file", "flag", "backend"],
)
def test_section_of_ours_that_is_not_installed_is_refused_with_the_command_that_installs_it(
    tmp_path: Path, flags: dict[str, str], text: str, setting: str
) -> None:
    (tmp_path / "sandkasten.yaml").write_text(text)
    with pytest.raises(InvalidConfiguration) as error:
        resolver.load(flags, {}, tmp_path)
    assert "the extra docker, which provides it, is not installed" in error.value.message
    assert error.value.hint == INSTALL
    assert error.value.details["setting"] == setting


@pytest.mark.usefixtures("_without_docker")
def test_variable_of_a_section_that_is_not_installed_is_answered_with_the_same_command(
    tmp_path: Path,
) -> None:
    environ = {"SANDKASTEN_DOCKER_HOST": "unix:///s"}
    assert resolver.load({}, environ, tmp_path).warnings == (
        "the environment variable SANDKASTEN_DOCKER_HOST has no effect; "
        f"the extra docker is not installed; run: {INSTALL}",
    )


def test_misspelled_setting_of_an_installed_section_gets_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "sandkasten.yaml").write_text("backends: {docker: {hots: 'unix:///s'}}\n")
    with pytest.raises(InvalidConfiguration) as error:
        resolver.load({}, {}, tmp_path)
    assert error.value.hint == "did you mean backends.docker.host?"


def test_table_of_extras_has_the_section_of_each_plugin_with_an_extra() -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    with_an_extra = {one.name for one in PLUGINS if one.name in extras}
    assert {f"backends.{name}": name for name in with_an_extra} == SECTION_EXTRAS
