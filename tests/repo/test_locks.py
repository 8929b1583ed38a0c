"""The requirements files pin and hash everything and contain no addresses."""

from __future__ import annotations

import re
import tomllib

import pytest

import sandkasten
from sandkasten.model.optional_extras import DISTRIBUTION, VERSION
from scripts.distributions import needs
from tests.repo import tree

LOCKS = sorted((tree.ROOT / "requirements").glob("*.txt"))
FRAMEWORKS = sorted((tree.ROOT / "requirements" / "frameworks").glob("*.txt"))
PROJECT = tomllib.loads((tree.ROOT / "pyproject.toml").read_text())["project"]


def _pins(content: str) -> dict[str, str]:
    pin = r"^([a-z0-9][a-z0-9.-]*)(?:\[[a-z0-9,-]+\])?==([^\s;\\]+)"
    return dict(re.findall(pin, content, re.MULTILINE))


def _addresses(content: str) -> list[str]:
    marks = ("://", "--index", "--extra-index", "--find-links", "--trusted-host", " @ ")
    return [line for line in content.splitlines() if any(mark in line for mark in marks)]


@pytest.mark.parametrize("lock", LOCKS + FRAMEWORKS, ids=lambda p: p.name)
def test_a_lock_holds_pins_with_hashes_and_no_address(lock):
    content = lock.read_text()
    assert _addresses(content) == []
    logical = [
        line
        for line in content.replace("\\\n", " ").splitlines()
        if line.strip() and not line.startswith("#")
    ]
    assert logical
    bare = [line for line in logical if "==" not in line or "--hash=sha256:" not in line]
    assert bare == []


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://example.org/simple",
        "--find-links /opt/wheels",
        "x @ https://example.org/x.whl",
    ],
)
def test_an_address_in_a_lock_is_reported(line):
    assert _addresses(f"x==1 \\\n    --hash=sha256:00\n{line}\n") == [line]


# What `make install EXTRAS=...` can name, and two more.
@pytest.mark.parametrize(
    "extra", sorted(PROJECT["optional-dependencies"].keys() - {one.stem for one in FRAMEWORKS})
)
def test_every_dependency_of_an_extra_is_locked(extra):
    wanted = {re.split(r"[<>=!~;\[ ]", need)[0].lower() for need in needs(extra)}
    pins = _pins((tree.ROOT / "requirements" / f"{extra}.txt").read_text())
    assert wanted - pins.keys() == set()


@pytest.mark.parametrize("lock", FRAMEWORKS, ids=lambda p: p.name)
def test_lock_of_a_framework_holds_its_extra(lock):
    wanted = {re.split(r"[<>=!~;\[ ]", need)[0].lower() for need in needs(lock.stem)}
    assert wanted - _pins(lock.read_text()).keys() == set()
    assert lock.with_suffix(".in").is_file()


def test_no_two_locks_disagree_on_a_version():
    # Those of frameworks may, and so may that of Dagger: they have environments of their own.
    versions: dict[str, set[str]] = {}
    for lock in LOCKS:
        if lock.stem == "dagger":
            continue
        for name, version in _pins(lock.read_text()).items():
            versions.setdefault(name, set()).add(version)
    assert {name: seen for name, seen in versions.items() if len(seen) > 1} == {}


def test_the_runtime_depends_on_the_client_and_three_libraries():
    names = [re.split("[>=]", requirement)[0] for requirement in PROJECT["dependencies"]]
    assert names == ["sandkasten-client", "aiohttp", "pyseccomp", "pyyaml"]


def test_package_runner_and_changelog_have_one_version():
    cargo = tomllib.loads((tree.ROOT / "runner" / "Cargo.toml").read_text())
    assert cargo["package"]["version"] == PROJECT["version"]
    assert sandkasten.__version__ == VERSION == PROJECT["version"]
    assert PROJECT["name"] == DISTRIBUTION
    headings = re.findall(
        r"^## \[?([\w.]+)", (tree.ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert {PROJECT["version"], "Unreleased"} & set(headings)


def test_the_contract_package_has_each_module_of_the_contract():
    file = tree.ROOT / "contract" / "pyproject.toml"
    wheel = tomllib.loads(file.read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    packed = {name.rpartition("/")[2] for name in wheel["force-include"]}
    modules = {path.name for path in (tree.ROOT / "tests" / "conformance").glob("test_*.py")}
    # Only programs of ours are held; no backend brings them.
    assert packed == modules - {"test_held_programs.py"}
