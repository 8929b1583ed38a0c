"""The core names no backend of a plugin: what it says of one comes from the plugin."""

from __future__ import annotations

import re
import tomllib
from functools import cache

import pytest

from tests.repo import tree

CORE = tree.SOURCES[:3]
ALLOWED = {
    # It says which extra has which backend.
    "client/src/sandkasten/model/optional_extras.py",
    # The descriptions of spec/openapi.json.
    "server/src/sandkasten_server/api/routes/health.py",
}
# A format of images and of build files, and directories that are never mounted.
NOT_A_BACKEND = re.compile(r"docker (?:archive|save|load)|/var/lib/docker|\.docker\b")
CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@cache
def names_of_plugins() -> frozenset[str]:
    """Return the names of the backends that plugins of this repository bring."""
    names: set[str] = set()
    for project in tree.ROOT.glob("plugins/*/pyproject.toml"):
        groups = tomllib.loads(project.read_text())["project"].get("entry-points", {})
        names.update(groups.get("sandkasten.backends", {}))
    return frozenset(names)


def backends_in(path: str, source: str) -> set[str]:
    """Return the backends of plugins that a file of the core names, in any of its text."""
    text = CAMEL_CASE.sub("_", NOT_A_BACKEND.sub("", source)).lower()
    named: set[str] = set()
    for name in names_of_plugins():
        # E2B is a protocol too, and `docker` a format and a registry of images.
        before = r"(?:backends?\W{1,2}|[\"'](?=e2b[\"']))" if name == "e2b" else "(?<![a-z])"
        if re.search(f"{before}{name}(?![a-z])", text) and not (
            name == "docker" and "image" in path
        ):
            named.add(name)
    return named


def test_only_two_files_of_the_core_name_a_backend_of_a_plugin():
    files = [path for source in CORE for path in source.rglob("*.py")]
    assert len(files) > 300
    paths = {path.relative_to(tree.ROOT).as_posix(): path for path in files}
    assert {name for name, path in paths.items() if backends_in(name, path.read_text())} == ALLOWED


def test_every_plugin_with_a_backend_is_looked_for():
    assert names_of_plugins() == {"dagger", "docker", "e2b", "fly", "kubernetes", "modal"}


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("class DockerEngineChoice: ...", {"docker"}),
        ("docker_engines: dict[str, str]", {"docker"}),
        ('hint="use backend local or docker"', {"docker"}),
        ("# A Pod of Kubernetes.", {"kubernetes"}),
        ('"backends.e2b"', {"e2b"}),
        ('("local", "e2b")', {"e2b"}),
        ('"fly" if provider else "modal"', {"fly", "modal"}),
        ("a Dockerfile, or a docker archive", set()),
        ('"/var/lib/docker"', set()),
        ("keys of the E2B protocol", set()),
        ("the butterfly of a modality", set()),
    ],
)
def test_name_of_a_backend_is_found_and_a_format_is_not(source: str, named: set[str]):
    assert backends_in("src/sandkasten_runtime/engine/engine.py", source) == named


def test_name_of_an_image_format_is_no_backend_where_images_are():
    assert backends_in("src/sandkasten_runtime/images/catalog.py", '"docker"') == set()
    assert backends_in("src/sandkasten_runtime/images/catalog.py", '"modal"') == {"modal"}
