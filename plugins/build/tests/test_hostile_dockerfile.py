"""Dockerfiles and .dockerignore files that would take long: their time is bounded."""

from __future__ import annotations

import functools
import os
import random

import pytest

from sandkasten.errors import BuildFailed, InvalidRequest
from sandkasten.model.sandbox.network_policy import CLOSED
from sandkasten_build.builder.copy_step import pick
from sandkasten_build.builder.dockerfile import steps_of
from sandkasten_build.builder.dockerfile_stages import parse_dockerfile
from sandkasten_build.builder.dockerignore import NOTHING, glob, parse_dockerignore
from sandkasten_runtime.images.image_config import ImageConfig


def steps(*lines: str) -> tuple[object, ...]:
    file = parse_dockerfile("\n".join(("FROM base", *lines)).encode(), {})[-1]
    return steps_of(file, ImageConfig(), CLOSED, NOTHING).steps


def _matches(pattern: str, path: str) -> bool:
    """Decide as the definition says, without any expression."""

    @functools.cache
    def at(p: int, n: int) -> bool:
        if p == len(pattern):
            return n == len(path)
        if pattern.startswith("**/", p):
            below = (i + 1 for i in range(n, len(path)) if path[i] == "/")
            return at(p + 3, n) or any(at(p + 3, i) for i in below)
        if pattern.startswith("**", p):
            return any(at(p + 2, i) for i in range(n, len(path) + 1))
        if pattern[p] == "*":
            end = path.find("/", n)
            return any(at(p + 1, i) for i in range(n, (len(path) if end < 0 else end) + 1))
        same = n < len(path) and (path[n] == pattern[p] or (pattern[p] == "?" and path[n] != "/"))
        return same and at(p + 1, n + 1)

    return at(0, 0)


def test_a_pattern_matches_what_its_definition_says():
    random_ = random.Random(7)
    counts = {True: 0, False: 0}
    for _ in range(4_000):
        pattern = "".join(random_.choices(["a", "b", "/", "*", "**", "**/", "?"], k=7))
        path = "".join(random_.choices("ab/", k=random_.randint(0, 9)))
        try:
            compiled = glob(pattern)
        except ValueError:  # too many `**/` inside names
            continue
        expected = _matches(pattern, path)
        counts[expected] += 1
        assert bool(compiled.match(path)) == expected, (pattern, path)
    assert min(counts.values()) > 200, counts


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 40 + "b", "a" * 250),
        ("**a" * 40 + "b", "a" * 4000),
        ("**/*a*a*a*a*b", "a/" * 2000),
        ("**/**/**/**/**/**/b", "a/" * 2000),
        ("a*" * 2000, "a" * 1999),
    ],
)
def test_no_pattern_takes_long(pattern, path):
    """Without a bound, these take longer than any test may."""
    assert glob(pattern).match(path) is None


def test_the_lines_of_a_hostile_dockerfile_take_no_long_time():
    """Each of them is about as long as a Dockerfile may be."""
    many = 250_000
    assert steps("RUN echo " + '"\\"' + '\\"' * many)
    with pytest.raises(InvalidRequest, match="line 1: syntax"):
        parse_dockerfile(b"# syntax = a" + b" " * many + b"b\nFROM a\n", {})
    with pytest.raises(InvalidRequest, match="too many flags"):
        steps("RUN " + "".join(f"--{n} " for n in range(100_000)))
    with pytest.raises(InvalidRequest, match="more than 100 instructions"):
        parse_dockerfile(b"".join(b"ARG a%d=1\n" % n for n in range(60_000)) + b"FROM a\n", {})
    names = " ".join(f"a{n}=1" for n in range(40_000))
    with pytest.raises(InvalidRequest, match="line 3"):
        steps(f"ARG {names}", "COPY " + "$a1 " * 100_000 + "/x")


def test_a_dockerignore_has_a_bounded_number_of_patterns():
    assert parse_dockerignore(b"a\n" * 1000).excludes("a")
    with pytest.raises(InvalidRequest, match="more than 1000 patterns"):
        parse_dockerignore(b"a\n" * 1001)
    with pytest.raises(InvalidRequest, match="line 1"):
        parse_dockerignore(b"a" * 5000)
    with pytest.raises(InvalidRequest, match="line 1"):
        parse_dockerignore(b"a**/" * 8 + b"b")


def test_a_path_that_is_too_deep_is_not_copied(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(17):
        os.mkdir("d" * 250, dir_fd=fd)
        inner = os.open("d" * 250, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    with pytest.raises(BuildFailed, match="is longer than 4096 characters"):
        pick(tmp_path, ".")
