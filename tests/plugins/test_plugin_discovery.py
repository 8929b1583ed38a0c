"""Backends that other distributions bring are found by their entry points."""

from __future__ import annotations

import sys
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from sandkasten.backends.plugin_discovery import GROUP, Discovered, discover
from sandkasten.ports.backend_plugins import INTERFACE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PLUGIN = """
from sandkasten.model.backends.capabilities import Capabilities
from sandkasten.ports.backend_plugins import BackendPlugin

PLUGIN = BackendPlugin({name!r}, Capabilities(strength=1), lambda context: {{}}, {interface})
"""

_SECTION = """
from dataclasses import dataclass

from sandkasten.model.backends.capabilities import Capabilities
from sandkasten.ports.backend_plugins import BackendPlugin
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import string

@dataclass(frozen=True)
class Options:
    x: str = setting("{}", string, "", "A string.")

PLUGIN = BackendPlugin("bad", Capabilities("kernel"), lambda context: {{}}, settings=Options)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def install(site: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that installs a distribution of one module."""

    def install(module: str, source: str, *, target: str = "", group: str = GROUP) -> None:
        (site / f"{module}.py").write_text(source)
        metadata = site / f"{module}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "entry_points.txt").write_text(
            f"[console_scripts]\nother = {module}:main\n\n"
            f"[{group}]\n{module} = {target or f'{module}:PLUGIN'}\n"
        )
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


def _plugin(name: str, interface: int = INTERFACE) -> str:
    return dedent(_PLUGIN).format(name=name, interface=interface)


def _discover(site: Path) -> Discovered:
    return discover({"local"}, [str(site), str(site), str(site / "missing")])


def test_plugin_of_another_distribution_is_found_once(
    site: Path, install: Callable[..., None]
) -> None:
    install("first_plugin", _plugin("first"))
    install("second_plugin", _plugin("second"))
    install("other_group", "", group="another.program")

    found = _discover(site)

    assert [plugin.name for plugin in found.plugins] == ["first", "second"]
    assert found.problems == ()


@pytest.mark.parametrize(
    ("source", "target", "problem"),
    [
        ("import does_not_exist", "", "cannot be imported: ModuleNotFoundError"),
        ("raise RuntimeError('broken')", "", "cannot be imported: RuntimeError: broken"),
        ("", "", "cannot be imported: AttributeError"),
        ("PLUGIN = 5", "", "is not a BackendPlugin"),
        (_plugin("bad"), "bad_plugin", "must name an object, as in bad_plugin:PLUGIN"),
        (_plugin("bad", INTERFACE + 1), "", f"requires plugin interface {INTERFACE + 1}"),
        (_plugin("local"), "", "has the name local, which another backend has"),
        (_plugin("Bad/Name"), "", "has the name 'Bad/Name', which is not a valid name"),
        (_SECTION.format("data_dir"), "", "has the setting data_dir, which must begin with"),
        (_SECTION.format("backends.good.x"), "", "must begin with backends.bad."),
        (_SECTION.format("backends.bad.x"), "", "without a method named completed"),
        (_plugin("bad").replace(", 1)", ", settings=int)"), "", "not a dataclass"),
    ],
    ids=[
        "import",
        "raises",
        "attribute",
        "type",
        "target",
        "interface",
        "taken",
        "name",
        "setting of the core",
        "setting of another",
        "no method",
        "no section",
    ],
)
def test_plugin_that_cannot_be_used_is_a_problem_and_stops_no_other(
    site: Path, install: Callable[..., None], source: str, target: str, problem: str
) -> None:
    install("bad_plugin", source, target=target)
    install("good_plugin", _plugin("good"))

    found = _discover(site)

    assert [plugin.name for plugin in found.plugins] == ["good"]
    [message] = found.problems
    assert message.startswith("backend plugin bad_plugin (bad_plugin")
    assert problem in message


def test_metadata_that_cannot_be_read_is_ignored(site: Path) -> None:
    for number, content in enumerate([b"\xff\xfe", f"[{GROUP}\nx = y".encode(), b""]):
        metadata = site / f"broken{number}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "entry_points.txt").write_bytes(content)
    (site / "empty-1.0.dist-info").write_text("a file")

    assert _discover(site) == Discovered()
