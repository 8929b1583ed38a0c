"""Globs over file names of a sandbox."""

from __future__ import annotations

import time

import pytest

from sandkasten.errors import InvalidRequest
from sandkasten.model.files.globs import compile_globs
from tests.patience import FAR_TOO_LATE_S


def matches(glob: str, name: str) -> bool:
    (one,) = compile_globs([glob])
    return one.matches(name)


@pytest.mark.parametrize(
    ("glob", "name"),
    [
        ("*.txt", "a.txt"),
        ("/workspace/*.txt", "a.txt"),
        ("/work/out/*", "out/x"),
        ("./a", "a"),
        ("**/*.png", "x.png"),
        ("**/*.png", "a/b/c/x.png"),
        ("out/**", "out/a/b"),
        ("out/**/*.csv", "out/x.csv"),
        ("out/**/*.csv", "out/a/x.csv"),
        ("a?c", "abc"),
        ("[ab]*", "b1"),
        ("[!ab]*", "c1"),
        ("[a-c]x", "bx"),
        ("*a*b*", "xxaxxbxx"),
        ("**", "a/b/c"),
        ("a*", "a\nb"),
        ("a[", "a["),
    ],
)
def test_a_glob_matches(glob, name):
    assert matches(glob, name)


@pytest.mark.parametrize(
    ("glob", "name"),
    [
        ("*.txt", "a/b.txt"),
        ("*.txt", "a.txt.gz"),
        ("out/*", "out/a/b"),
        ("out/**/*.csv", "x.csv"),
        ("[!ab]*", "a1"),
        ("a?c", "a/c"),
        ("a.c", "abc"),
        ("*a*b", "ba"),
        ("A", "a"),
    ],
)
def test_a_glob_does_not_match(glob, name):
    assert not matches(glob, name)


@pytest.mark.parametrize(
    "glob", ["", "/etc/*", "../x", "a/../b", "a//b", "x" * 600, "a\0", "[z-a]"]
)
def test_an_invalid_glob_is_refused(glob):
    with pytest.raises(InvalidRequest):
        compile_globs([glob])


def test_too_many_globs_are_refused():
    with pytest.raises(InvalidRequest):
        compile_globs(["a"] * 65)


def test_matching_is_fast_for_any_name():
    stars = "*a" * 100 + "b"
    deep = "/".join(["a"] * 1000)
    many = "**/a/" * 50 + "b"
    began = time.perf_counter()
    assert not matches(stars, "a" * 255)
    assert not matches(many, deep)
    assert time.perf_counter() - began < FAR_TOO_LATE_S
