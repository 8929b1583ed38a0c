"""npm version ranges; the data was captured from npm's own library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandkasten_build.packages.semver import Range, parse_version

# What `semver.validRange` and `semver.satisfies` of npm's semver 7.8.5 say.
CAPTURED = json.loads((Path(__file__).parent / "semver.json").read_text())


@pytest.mark.parametrize("text", CAPTURED["ranges"])
def test_a_version_range_matches_as_in_npm(text):
    parsed = Range.parse(text)
    versions = [parse_version(version) for version in CAPTURED["versions"]]
    matching = None if parsed is None else [v.text for v in versions if v and parsed.holds(v)]
    assert matching == CAPTURED["ranges"][text]


def test_the_newest_matching_version_is_chosen():
    versions = [v for text in CAPTURED["versions"] if (v := parse_version(text)) is not None]
    range_ = Range.parse("^1.2")
    assert range_ is not None
    best = range_.best(versions)
    assert best is not None
    assert best.text == "1.10.0"
    assert range_.best([]) is None


@pytest.mark.parametrize("text", ["", "1", "1.2", "1.2.3.4", "01.2.3", "1.2.x", "a", "1.2.3" * 99])
def test_an_invalid_version_is_none(text):
    assert parse_version(text) is None


def test_a_version_range_of_megabytes_is_refused():
    assert Range.parse("1 || " * 100_000 + "1") is None
