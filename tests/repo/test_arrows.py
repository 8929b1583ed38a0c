"""The subpackages import each other only as ARCHITECTURE.md allows."""

from __future__ import annotations

import re

import pytest

from tests.repo import tree
from tests.repo.arrows import CLIENT, LIBRARIES, PLUGINS, RUNTIME, SERVER, broken, room

# The public face of the client, in two modules of the root; no package of its own.
FACES = {"__init__", "sync"}
ROW = re.compile(r"^\| `([\w/.]+)` \| .+ \| ([a-z_., –]+) \|$", re.MULTILINE)


def _named(module: str) -> str:
    """Return the full name of a module; one with `_` in front is of the server or a plugin."""
    if module.startswith("_"):
        return f"sandkasten{module}"
    package = "sandkasten_runtime" if module.split(".")[0] in RUNTIME else "sandkasten"
    return f"{package}.{module}"


def _all_imports() -> list[tree.Import]:
    found: list[tree.Import] = []
    for module, path in tree.modules().items():
        is_package = path.name == "__init__.py"
        found += tree.imports_of(module, path.read_text(), is_package=is_package)
    return found


def test_every_import_is_allowed_by_the_architecture():
    found = _all_imports()
    assert len(found) > 50
    assert broken(found) == []


def test_every_library_is_imported_in_each_of_its_rooms():
    used = {(found.target.split(".")[0], room(found.module)) for found in _all_imports()}
    allowed = {(library, here) for library, rooms in LIBRARIES.items() for here in rooms}
    assert allowed - used == set()


def test_the_table_of_the_architecture_is_the_table_of_arrows():
    rows = ROW.findall((tree.ROOT / "ARCHITECTURE.md").read_text())
    documented = {package: set(re.findall(r"[\w.]+", allowed)) for package, allowed in rows}
    assert documented == {
        package: set(allowed) - FACES
        for package, allowed in (CLIENT | RUNTIME | SERVER | _plugin_rows()).items()
        if package not in FACES
    }


def _plugin_rows() -> dict[str, frozenset[str]]:
    return {f"plugins/{name}": allowed for name, allowed in PLUGINS.items()}


def test_the_client_imports_no_room_of_the_runtime():
    allowed = frozenset[str]().union(*CLIENT.values())
    assert allowed - CLIENT.keys() == set()


@pytest.mark.parametrize(
    ("package", "rooms"), [("sandkasten", CLIENT), ("sandkasten_runtime", RUNTIME)]
)
def test_every_room_is_in_its_package(package, rooms):
    modules = (name.split(".") for name in tree.modules())
    there = {room(".".join(parts)) for parts in modules if parts[0] == package}
    assert there - {"__init__", "lazy_dataclass"} == rooms.keys() - {"__init__"}


def test_every_plugin_has_a_row():
    folders = {path.parent.name for path in tree.SOURCES if path.parent.parent.name == "plugins"}
    assert PLUGINS.keys() == folders


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        (
            "model.x",
            "import sandkasten_runtime.engine.engine",
            "model) imports sandkasten_runtime.engine.engine",
        ),
        ("wire.x", "from sandkasten.model.ids import SandboxId", "wire) imports sandkasten.model"),
        ("wire.x", "from ..linux import cgroup", "(wire) imports sandkasten_runtime.linux"),
        (
            "engine.x",
            "def f():\n    from sandkasten_runtime.backends import local",
            "(engine) imports",
        ),
        ("_server.cli.x", "from sandkasten_runtime import engine", "(server.cli) imports"),
        (
            "client.sandbox",
            "import sandkasten_runtime.assembly.engine_assembly",
            "(client) imports",
        ),
        (
            "store.x",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
            "    import sandkasten_runtime.wire.frame_codec",
            "(store) imports sandkasten_runtime.wire.frame_codec",
        ),
        ("backends.local.backend", "import sandkasten_runtime.backends.oci", "imports backend oci"),
        ("backends.local", "from sandkasten_runtime.backends import oci", "imports backend oci"),
        ("_server.api.x", "import sandkasten_server.daemon.serve", "(server.api) imports"),
        ("_server.daemon.x", "def f():\n    from sandkasten_tools.mcp import x", "(server.daemon)"),
        ("_server.daemon.x", "from sandkasten_server.cli import main", "(server.daemon)"),
        ("engine.x", "import sandkasten_server.api.route", "(engine) imports sandkasten_server"),
        ("client.server.embedded", "import sandkasten_tools.mcp.mcp_http", "(client) imports"),
        ("_server.cli.x", "from sandkasten_tools.mcp import mcp_server", "(server.cli)"),
        ("_server.api.x", "import sandkasten_agents.lazy_agents", "(server.api) imports"),
        ("_server.daemon.x", "import sandkasten_agents.lazy_agents", "(server.daemon)"),
        ("_server.daemon.x", "from sandkasten_e2b import e2b_domain", "(server.daemon)"),
        ("_agents.x", "import mcp", "the library mcp"),
        ("engine.x", "import yaml", "the library yaml"),
        ("client.x", "import httpx", "the library httpx"),
        (
            "_integrations.x",
            "from sandkasten.client import sandbox",
            "(plugins.integrations)",
        ),
        (
            "_integrations.x",
            "from sandkasten.errors import NotFound",
            "(plugins.integrations)",
        ),
        (
            "_dagger.x",
            "from sandkasten_runtime.backends.local import cell",
            "not public to plugins",
        ),
        ("_dagger.x", "from sandkasten_runtime import backends", "not public to plugins"),
        ("engine.x", "import inspect_ai", "the library inspect_ai"),
        ("attic.x", "import sandkasten.errors", "without a row in the table"),
    ],
)
def test_a_forbidden_import_is_reported(module, source, complaint):
    complaints = broken(tree.imports_of(_named(module), source))
    assert len(complaints) == 1
    assert complaint in complaints[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("model.x", "import json\nfrom sandkasten.errors import InvalidRequest"),
        ("model.x", "from sandkasten.model import ids"),
        (
            "client.server.embedded",
            "def f():\n    from sandkasten_runtime.assembly.engine_assembly import open_engine",
        ),
        (
            "assembly.engine_assembly",
            "import yaml\nfrom sandkasten_runtime.store import ledger_directory",
        ),
        ("backends.local.backend", "from sandkasten_runtime.backends.local import bwrap_arguments"),
        ("backends.backend_catalog", "from sandkasten_runtime.backends import local, oci"),
        ("linux.seccomp", "import pyseccomp"),
        ("_tools.mcp.mcp_server", "import mcp\nfrom sandkasten.client.server import server_pool"),
        ("_server.cli.main", "import typer\nfrom sandkasten.client.blocking import sync"),
        ("_server.cli.main", "from sandkasten import Sandbox, __version__"),
        (
            "_dagger.x",
            "import dagger\nfrom sandkasten_runtime.backends.lazy_backend import LazyBackend",
        ),
        ("_integrations.x", "import inspect_ai\nfrom sandkasten import AsyncSandbox, FileNotFound"),
    ],
)
def test_an_allowed_import_is_not_reported(module, source):
    assert broken(tree.imports_of(_named(module), source)) == []
