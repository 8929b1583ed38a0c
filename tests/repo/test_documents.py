"""The main documents exist and are complete, and frozen files are unchanged."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.repo import tree

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS = ("README", "ARCHITECTURE", "SPECIFICATION", "SECURITY", "CHANGELOG", "CONTRIBUTING")
RUNNER_SPEC = tree.ROOT / "spec" / "runner"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_exists_and_is_not_empty(name):
    assert len((tree.ROOT / f"{name}.md").read_text()) > 500


def test_the_readme_shows_the_two_commands():
    readme = (tree.ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme


def test_every_link_inside_the_repository_has_a_target():
    dead = []
    for path in tree.files():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
            outside = "://" in target or target.startswith("mailto:")
            if not outside and not (path.parent / target).exists():
                dead.append(f"{path.relative_to(tree.ROOT)}: {target}")
    assert dead == []


def _linked(page: Path) -> set[Path]:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    return {(page.parent / target).resolve() for target in targets if "://" not in target}


def test_every_page_of_the_documentation_is_linked_from_the_index_of_users_or_authors():
    docs = tree.ROOT / "docs"
    users, authors = docs / "index.md", docs / "authors.md"
    assert authors in _linked(users)
    pages = {path for path in docs.rglob("*.md") if path not in (users, authors)}
    assert pages - _linked(users) - _linked(authors) == set()


def test_every_page_is_in_the_navigation_of_the_site():
    navigation = yaml.safe_load((tree.ROOT / "mkdocs.yml").read_text())["nav"]
    listed = set(re.findall(r"[^'\" ]+\.md", str(navigation)))
    site = [path for path in tree.files() if path.suffix == ".md"]
    pages = {str(path.relative_to(tree.ROOT)) for path in site}
    assert listed == pages


def test_every_subpackage_is_in_the_architecture():
    text = (tree.ROOT / "ARCHITECTURE.md").read_text()
    names = [name.split(".") for name in tree.modules()]
    packages = {
        name[1]
        for name in names
        if name[0] in {"sandkasten", "sandkasten_runtime"} and len(name) > 2
    }
    packages |= {
        f"plugins/{path.parent.name}" for path in tree.SOURCES if path.parts[-3] == "plugins"
    }
    assert {package for package in packages if f"| `{package}` |" not in text} == set()


def _paths(page: Path) -> list[str]:
    return re.findall(r"`([\w.-]+/[\w./-]*)`", page.read_text())


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "docs/guides/extending.md"])
def test_every_path_in_a_map_of_the_code_exists(name):
    paths = _paths(tree.ROOT / name)
    roots = (tree.ROOT, *(package for source in tree.SOURCES for package in source.glob("sand*")))
    assert len(paths) > 10
    assert [path for path in paths if not any((root / path).exists() for root in roots)] == []


@pytest.mark.parametrize(
    "name", sorted(p.parent.name for p in tree.ROOT.glob("plugins/*/README.md"))
)
def test_every_path_in_the_page_of_a_plugin_exists(name):
    page = tree.ROOT / "plugins" / name / "README.md"
    # The last part of `docker/NAME` stands for any name.
    paths = [path for path in _paths(page) if not path.rpartition("/")[2].isupper()]
    roots = (tree.ROOT, page.parent)
    assert paths
    assert [path for path in paths if not any((root / path).exists() for root in roots)] == []


def _frozen() -> dict[str, str]:
    lines = (RUNNER_SPEC / "FROZEN").read_text().splitlines()
    return {name: digest for digest, name in (line.split() for line in lines if line)}


@pytest.mark.promise("P37")
def test_every_generation_of_the_runner_protocol_is_unchanged():
    generations = sorted(p.name for p in RUNNER_SPEC.glob("generation-*.json"))
    assert generations
    assert {
        name: hashlib.sha256((RUNNER_SPEC / name).read_bytes()).hexdigest() for name in generations
    } == _frozen()


def test_each_frozen_generation_is_a_document_with_its_own_number():
    for name in _frozen():
        document = json.loads((RUNNER_SPEC / name).read_text())
        assert document["generation"] == int(re.findall(r"\d+", name)[0])
