"""How a path in a request names a file inside a sandbox."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkasten.errors import InvalidRequest
from sandkasten.model.files.sandbox_paths import sandbox_path, working_directory, workspace_member


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("x", "/workspace/x"),
        ("/work/x", "/workspace/x"),
        ("/workspace/x", "/workspace/x"),
        ("./x", "/workspace/x"),
        ("a//b/./c/", "/workspace/a/b/c"),
        (".", "/workspace"),
        ("/work", "/workspace"),
        ("/", "/"),
        ("/workshop/x", "/workshop/x"),
        ("/tmp/x", "/tmp/x"),
        ("-rf", "/workspace/-rf"),
        ("new\nline", "/workspace/new\nline"),
        ("bad\udcffbyte", "/workspace/bad\udcffbyte"),
        ("..x/x..", "/workspace/..x/x.."),
        ("%2e%2e/x", "/workspace/%2e%2e/x"),
    ],
)
def test_a_path_means_one_file(written, meant):
    assert sandbox_path(written) == meant


@pytest.mark.parametrize("path", ["", "..", "a/../b", "/work/../etc", "a\0b", "x" * 4096, "\ud800"])
def test_an_invalid_path_is_refused(path):
    with pytest.raises(InvalidRequest):
        sandbox_path(path)


def test_a_path_that_is_not_a_string_is_refused():
    with pytest.raises(InvalidRequest):
        sandbox_path(7)  # type: ignore[arg-type]


@given(st.text(max_size=200))
def test_a_path_becomes_absolute_and_normal_or_is_refused(text):
    try:
        answer = sandbox_path(text)
    except InvalidRequest:
        return
    assert answer.startswith("/")
    assert ".." not in answer.split("/")
    assert sandbox_path(answer) == answer


@pytest.mark.parametrize("path", ["/etc/x", "/tmp/x", ".", "/work", "../x", "/"])
def test_only_paths_inside_the_workspace_are_members_of_it(path):
    with pytest.raises(InvalidRequest):
        workspace_member(path)


def test_members_of_the_workspace_are_recognised_by_their_path():
    assert workspace_member("/work/data/x.csv") == "/workspace/data/x.csv"


def test_a_working_directory_may_contain_dotdot_but_must_be_valid():
    assert working_directory("sub/..") == "/workspace/sub/.."
    assert working_directory("/work/a") == "/workspace/a"
    assert working_directory("/tmp") == "/tmp"
    for bad in ("", "a\0", "x" * 5000):
        with pytest.raises(InvalidRequest):
            working_directory(bad)
