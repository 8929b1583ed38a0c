"""The subpackages import each other only as ARCHITECTURE.md allows."""

from __future__ import annotations

import re

import pytest

from tests.repo import tree
from tests.repo.arrows import MAY_IMPORT, broken

# The public face of the client, in two modules of the root; no package of its own.
FACES = {"__init__", "sync"}
ROW = re.compile(r"^\| `(\w+)` \| .+ \| ([a-z, –]+) \|$", re.MULTILINE)


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


def test_the_table_of_the_architecture_is_the_table_of_arrows():
    rows = ROW.findall((tree.ROOT / "ARCHITECTURE.md").read_text())
    documented = {package: set(re.findall(r"\w+", allowed)) for package, allowed in rows}
    assert documented == {
        package: set(allowed) - FACES
        for package, allowed in MAY_IMPORT.items()
        if package not in FACES
    }


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("model.x", "import sandkasten.engine.engine", "model) imports sandkasten.engine.engine"),
        ("wire.x", "from sandkasten.model.ids import SandboxId", "wire) imports sandkasten.model"),
        ("wire.x", "from ..model import ids", "(wire) imports sandkasten.model"),
        ("engine.x", "def f():\n    from sandkasten.backends import local", "(engine) imports"),
        ("cli.x", "from sandkasten import engine", "(cli) imports sandkasten.engine"),
        ("client.sandbox", "import sandkasten.daemon.engine_assembly", "(client) imports"),
        (
            "store.x",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
            "    import sandkasten.wire.frame_codec",
            "(store) imports sandkasten.wire.frame_codec",
        ),
        ("backends.local.cell", "import sandkasten.backends.oci", "imports backend oci"),
        ("backends.local", "from sandkasten.backends import oci", "imports backend oci"),
        ("daemon.serve", "import sandkasten.client.server.server_pool", "(daemon) imports"),
        ("daemon.x", "def f():\n    from sandkasten.mcp import mcp_server", "(daemon) imports"),
        ("daemon.x", "from sandkasten.cli import main", "(daemon) imports sandkasten.cli"),
        ("client.server.embedded", "import sandkasten.mcp.mcp_http", "(client) imports"),
        ("mcp.x", "import sandkasten.cli.main", "(mcp) imports sandkasten.cli"),
        ("agents.x", "import mcp", "the library mcp"),
        ("engine.x", "import yaml", "the library yaml"),
        ("client.x", "import httpx", "the library httpx"),
        ("integrations.x", "from sandkasten.client import sandbox", "(integrations) imports"),
        ("integrations.x", "from sandkasten.errors import NotFound", "(integrations) imports"),
        ("engine.x", "import inspect_ai", "the library inspect_ai"),
        ("attic.x", "import sandkasten.errors", "without a row in the table"),
    ],
)
def test_a_forbidden_import_is_reported(module, source, complaint):
    complaints = broken(tree.imports_of(f"sandkasten.{module}", source))
    assert len(complaints) == 1
    assert complaint in complaints[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("model.x", "import json\nfrom sandkasten.errors import InvalidRequest"),
        ("model.x", "from sandkasten.model import ids"),
        (
            "client.server.embedded",
            "def f():\n    from sandkasten.daemon.engine_assembly import open_engine",
        ),
        (
            "daemon.engine_assembly",
            "import sandkasten.backends.local, sandkasten.store.ledger_directory, yaml",
        ),
        ("backends.local.cell", "from sandkasten.backends.local import bwrap_arguments"),
        ("backends.backend_catalog", "from sandkasten.backends import local, oci"),
        ("linux.seccomp", "import pyseccomp"),
        ("mcp.mcp_server", "import mcp\nfrom sandkasten.client.server import server_pool"),
        ("cli.main", "import typer\nfrom sandkasten.client.blocking import sync"),
        ("cli.main", "from sandkasten import Sandbox, __version__"),
        ("integrations.x", "import inspect_ai\nfrom sandkasten import AsyncSandbox, FileNotFound"),
    ],
)
def test_an_allowed_import_is_not_reported(module, source):
    assert broken(tree.imports_of(f"sandkasten.{module}", source)) == []
