"""A plugin brings its section: the settings of a daemon are the sum of what is installed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sandkasten.backends.backend_catalog import PLUGINS
from sandkasten.daemon.settings import resolver
from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.backends.capabilities import Capabilities
from sandkasten.ports.backend_plugins import BackendPlugin
from sandkasten.settings.setting_fields import Origin, setting
from sandkasten.settings.setting_parsers import seconds, string

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten.ports.backend_plugins import SettingContext


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
