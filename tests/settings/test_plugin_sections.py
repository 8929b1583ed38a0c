"""A plugin brings its section: the settings of a daemon are the sum of what is installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.backends.capabilities import Capabilities
from sandkasten.model.optional_extras import DISTRIBUTIONS, SECTION_EXTRAS
from sandkasten.ports.backend_plugins import BackendPlugin
from sandkasten.settings.setting_fields import Origin, setting
from sandkasten.settings.setting_parsers import seconds, string
from sandkasten_runtime.assembly.settings import backend_names, resolver
from sandkasten_runtime.backends.backend_catalog import PLUGINS
from scripts.distributions import projects

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
    found = replace(resolver.INSTALLED, backends=(*PLUGINS, OTHER))
    monkeypatch.setattr(resolver, "INSTALLED", found)


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
    monkeypatch.setattr(resolver, "INSTALLED", replace(resolver.INSTALLED, backends=left))
    monkeypatch.setattr(backend_names, "BACKENDS", tuple(one.name for one in left))


INSTALL = "pip install 'sandkasten-runtime[docker]'"


@pytest.mark.usefixtures("_without_docker")
@pytest.mark.parametrize(
    ("flags", "text", "setting"),
    [
        ({}, "backends: {docker: {host: 'unix:///s'}}\n", "backends.docker"),
        ({"backends.docker.host": "unix:///s"}, "", "backends.docker.host"),
        ({"backend": "docker"}, "", "backend"),
        ({"backend": "docker/lab"}, "", "backend"),
    ],
    ids=["file", "flag", "backend", "engine"],
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


@pytest.fixture
def _without_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    left = tuple(plugin for plugin in resolver.INSTALLED.settings if plugin.name != "agents")
    monkeypatch.setattr(resolver, "INSTALLED", replace(resolver.INSTALLED, settings=left))


@pytest.mark.usefixtures("_without_agents")
@pytest.mark.parametrize("name", ["agents.dirs", "agents.max_steps", "workflows.dirs"])
def test_section_that_another_plugin_of_ours_extends_is_still_the_one_of_its_extra(
    tmp_path: Path, name: str
) -> None:
    """`agents.max_sandboxes` is a setting of the plugin for tools, which the server contains."""
    with pytest.raises(InvalidConfiguration) as error:
        resolver.load({name: "1"}, {}, tmp_path)
    assert error.value.hint == "pip install 'sandkasten-runtime[agents]'"
    variable = f"SANDKASTEN_{name.upper().replace('.', '_')}"
    (warning,) = resolver.load({}, {variable: "1"}, tmp_path).warnings
    assert "the extra agents is not installed" in warning
    assert resolver.load({"agents.max_sandboxes": "1"}, {}, tmp_path).warnings == ()


def test_settings_file_of_a_daemon_is_read_where_no_server_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An embedded engine reads the same file, and what is about the daemon does not concern it."""
    monkeypatch.setattr(resolver, "INSTALLED", replace(resolver.INSTALLED, settings=()))
    file = tmp_path / "sandkasten.yaml"
    for text in ("listen: 127.0.0.1:8080", "tls: {cert: /c}", "telemetry: {metrics: open}"):
        file.write_text(f"{text}\ndefault_image: tiny\n")
        assert resolver.load({}, {}, tmp_path).policy.default_image == "tiny"
    file.write_text("agents: {dirs: [/a]}\n")
    with pytest.raises(InvalidConfiguration) as error:
        resolver.load({}, {}, tmp_path)
    assert error.value.hint == "pip install 'sandkasten-runtime[agents]'"
    with pytest.raises(InvalidConfiguration) as error:
        resolver.load({"listen": "127.0.0.1:1"}, {}, tmp_path / "none")
    assert error.value.hint == "pip install 'sandkasten-runtime[server]'"
    (warning,) = resolver.load(
        {}, {"SANDKASTEN_API_KEY": "k", "SANDKASTEN_LISTEN": "127.0.0.1:1"}, tmp_path / "none"
    ).warnings
    assert warning.startswith("the environment variable SANDKASTEN_LISTEN has no effect; ")
    assert warning.endswith("run: pip install 'sandkasten-runtime[server]'")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("stores", "did you mean store?"),
        ("telemetry.endpiont", "did you mean telemetry.endpoint?"),
        ("telemetry.nothing_alike", "known: telemetry.content, telemetry.endpoint, "),
        ("backends.xyz", "known: backends.dagger, backends.docker, backends.e2b, "),
        ("xyz", "sandkasten config show lists the settings"),
        ("xyz.url", "sandkasten config show lists the settings"),
    ],
)
def test_hint_of_an_unknown_setting_is_short(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(InvalidConfiguration) as error:
        resolver.load({name: "1"}, {}, tmp_path)
    assert error.value.hint.startswith(hint)
    assert len(error.value.hint) < 200


def test_table_of_extras_has_the_section_of_each_plugin_with_an_extra() -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    with_an_extra = {one.name for one in PLUGINS if one.name in extras}
    backends = {f"backends.{name}": name for name in with_an_extra}
    assert backends.items() <= SECTION_EXTRAS.items()
    prefixes = {prefix for plugin in resolver.INSTALLED.settings for prefix in plugin.prefixes}
    assert SECTION_EXTRAS.keys() - backends.keys() == prefixes | {"store"}
    assert set(SECTION_EXTRAS.values()) <= extras.keys()


def test_every_distribution_of_this_repository_is_one_of_ours() -> None:
    assert projects().keys() <= DISTRIBUTIONS


@pytest.fixture
def _without_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "INSTALLED", replace(resolver.INSTALLED, stores=()))


@pytest.mark.usefixtures("_without_the_store")
def test_variable_of_the_database_is_refused_where_its_section_is_not_installed(
    tmp_path: Path,
) -> None:
    """The daemon would keep a ledger of its own beside the one of the database."""
    with pytest.raises(InvalidConfiguration) as error:
        resolver.load({}, {"SANDKASTEN_STORE_URL": "postgresql://h/d"}, tmp_path)
    assert "SANDKASTEN_STORE_URL is not a setting" in error.value.message
    assert "pip install 'sandkasten-runtime[postgres]'" in error.value.hint


def test_misspelled_variable_of_the_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration) as error:
        resolver.load({}, {"SANDKASTEN_STORE_URI": "postgresql://h/d"}, tmp_path)
    assert "did you mean SANDKASTEN_STORE_URL?" in error.value.hint
    assert error.value.details["setting"] == "SANDKASTEN_STORE_URI"
    # An empty variable is not set.
    assert resolver.load({}, {"SANDKASTEN_STORE_URI": ""}, tmp_path).warnings == ()


def test_resolver_imports_no_section_that_a_plugin_brings() -> None:
    code = (
        "import sys\n"
        "from sandkasten.plugins import entry_points\n"
        "entry_points._read = lambda path: entry_points.EntryPoints()\n"
        "from sandkasten_runtime.assembly.settings import resolver\n"
        "resolver.load({}, {})\n"
        "rooms = {'.'.join(name.split('.')[:2]) for name in sys.modules}\n"
        "other = {'sandkasten_server.api', 'sandkasten_agents', 'sandkasten_e2b'}\n"
        "print(*sorted(other & rooms),"
        " *(plugin.name for plugin in resolver.INSTALLED.backends))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={}
    )
    assert done.stdout.split() == ["local", "oci", "gvisor"]
