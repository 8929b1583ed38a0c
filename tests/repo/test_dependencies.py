"""Each locked package has a licence that is allowed, and each direct one a purpose and a keeper."""

from __future__ import annotations

import re

import pytest

from scripts import advisories, dependencies

PACKAGES = dependencies.read()
NOTES = dependencies.notes()
ALLOWED = NOTES["licenses"]["allowed"].keys()


def is_allowed(expression: str) -> bool:
    """Return whether an SPDX expression is satisfied by the licences that are allowed."""
    words = re.findall(r"[()]|[^\s()]+(?: WITH [^\s()]+)?", expression)
    values = [
        {"AND": "and", "OR": "or"}.get(word, word if word in "()" else str(word in ALLOWED))
        for word in words
    ]
    return bool(values) and bool(eval(" ".join(values)))


def license_of(name: str, stated: str) -> str:
    return str(NOTES["licenses"]["stated"].get(name, stated))


def test_packages_are_those_of_the_locks():
    recorded = {
        ecosystem: {(name, version) for name, versions in table.items() for version in versions}
        for ecosystem, table in PACKAGES.items()
    }
    assert recorded == dependencies.locked()


def test_every_licence_is_allowed():
    refused = {
        name: about["license"]
        for table in PACKAGES.values()
        for name, versions in table.items()
        for about in versions.values()
        if not is_allowed(license_of(name, about["license"]))
    }
    assert refused.keys() == NOTES["licenses"]["exceptions"].keys(), refused


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT OR GPL-3.0-only) AND Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-only", False),
        ("", False),
    ],
)
def test_a_licence_is_an_expression_of_allowed_ones(expression, allowed):
    assert is_allowed(expression) is allowed


def test_licences_are_stated_only_for_packages_without_an_expression():
    versions = {name: versions for table in PACKAGES.values() for name, versions in table.items()}
    needless = {
        name
        for name in NOTES["licenses"]["stated"]
        if name not in versions or all(is_allowed(v["license"]) for v in versions[name].values())
    }
    assert needless == set()


@pytest.mark.parametrize("ecosystem", PACKAGES)
def test_packages_in_several_versions_have_a_reason(ecosystem):
    several = {name for name, versions in PACKAGES[ecosystem].items() if len(versions) > 1}
    assert several == NOTES["duplicates"][ecosystem].keys()


@pytest.mark.parametrize("ecosystem", PACKAGES)
def test_every_direct_dependency_has_a_purpose_and_a_keeper(ecosystem):
    notes = NOTES[ecosystem]
    assert notes.keys() == dependencies.direct()[ecosystem].keys()
    assert all(note["purpose"] and note["keeper"] for note in notes.values())


def test_crates_of_the_fuzzer_are_those_of_the_runner_and_more():
    versions = [
        {(name, version) for name, version, checked in dependencies.crates(lock) if checked}
        for lock in dependencies.CRATES.values()
    ]
    assert versions[0] <= versions[1]


def test_changes_of_a_lock_are_listed():
    before: dependencies.Packages = {"python": {"a": {"1": {}}, "b": {"1": {}}, "c": {"1": {}}}}
    after: dependencies.Packages = {"python": {"a": {"2": {}}, "b": {"1": {}}, "d": {"3": {}}}}
    assert dependencies.changes(before, after) == [
        "python a: 1 -> 2",
        "python c: 1 -> removed",
        "python d: added -> 3",
    ]


OSV = """{"id": "GHSA-1", "affected": [{"package": {"ecosystem": "npm", "name": "vite"},
  "ranges": [{"type": "SEMVER", "events": [{"introduced": "8.0.0"}, {"fixed": "8.0.16"}]}]}]}"""
PYSEC = """id: PYSEC-1
affected:
- package: {name: Starlette, ecosystem: PyPI}
  ranges: [{type: ECOSYSTEM, events: [{introduced: '0'}, {last_affected: 1.0.0}]}]
"""


@pytest.mark.parametrize(
    ("name", "content", "affected", "safe"),
    [
        ("a.json", OSV, ["8.0.0", "8.0.15"], ["7.9.9", "8.0.16"]),
        ("a.yaml", PYSEC, ["0.1", "1.0.0"], ["1.0.1"]),
    ],
)
def test_affected_versions_are_found(tmp_path, name, content, affected, safe):
    (tmp_path / name).write_text(content)
    versions: dict[str, object] = dict.fromkeys([*affected, *safe])
    packages = {"npm": {"vite": versions}, "python": {"starlette": versions}}
    lines = advisories.affected(tmp_path, packages)
    assert [line.split()[2] for line in lines] == affected
