"""Every promise of SPECIFICATION.md has a test, and every marker names a promise."""

from __future__ import annotations

import pytest

from tests.repo import promises, tree
from tests.repo.promises import Marker, Promise

SPECIFICATION = (
    "# S\n\nProse.\n\n## Files\n\n- **P01** A write is atomic.\n- **P02** Names are bytes.\n"
)
READ = [Promise("P01", "Files", "A write is atomic."), Promise("P02", "Files", "Names are bytes.")]

MARKED = """\
import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P01")]

@pytest.mark.promise("P02", "P03")
async def test_a(): ...

@pytest.mark.parametrize("x", [1])
@pytest.mark.promise(WRITES)
def test_b(x): ...

def test_c(): ...

class TestD:
    pytestmark = pytest.mark.promise("P04")

    @pytest.mark.promise()
    def test_e(self): ...
"""
RUST = """\
//! Frames.

// promise: P01

use std::io;

// promise: P02, P03
/// Why.
#[test]
fn frames_survive() {}

#[test]
fn unmarked() {}
"""


def test_every_promise_has_a_test_and_every_marker_names_a_promise():
    read = promises.read(promises.SPECIFICATION.read_text())
    assert len(read) >= 50
    assert promises.problems(read, promises.markers(tree.files(), tree.ROOT)) == []


def test_promises_are_read_with_their_group_and_text():
    assert promises.read(SPECIFICATION) == READ


def test_a_promise_that_spans_several_lines_is_not_cut_silently():
    """Every item of the real document is one line; a second line would be lost."""
    items = [
        line
        for line in promises.SPECIFICATION.read_text().partition("\n## ")[2].splitlines()
        if line and not line.startswith("## ")
    ]
    read = promises.read(promises.SPECIFICATION.read_text())
    assert [line for line in items[1:] if not line.startswith("- **P")] == []
    assert len(items) - 1 == len(read)


@pytest.fixture
def files(tmp_path):
    def write(**sources):
        for name, source in sources.items():
            path = tmp_path / name.replace("__", "/").replace("_rs", ".rs").replace("_py", ".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(source)
        return promises.markers(tmp_path.rglob("*.*"), tmp_path)

    return write


def test_markers_of_python_tests_classes_and_modules_are_found(files):
    assert files(tests__test_x_py=MARKED, tests__helper_py=MARKED) == [
        Marker("tests/test_x.py", "", ("P01",)),
        Marker("tests/test_x.py", "test_a", ("P02", "P03")),
        Marker("tests/test_x.py", "test_b", ("WRITES",)),
        Marker("tests/test_x.py", "TestD", ("P04",)),
        Marker("tests/test_x.py", "TestD::test_e", ()),
    ]


def test_comments_mark_rust_tests_rust_files_and_benchmarks(files):
    benchmark = "# promise: P09\nRATIOS = ()\n"
    assert files(runner__frames_rs=RUST, benchmarks__run_py=benchmark) == [
        Marker("benchmarks/run.py", "", ("P09",)),
        Marker("runner/frames.rs", "", ("P01",)),
        Marker("runner/frames.rs", "frames_survive", ("P02", "P03")),
    ]


def test_promises_and_markers_that_agree_have_no_problems():
    assert promises.problems(READ, [Marker("a.py", "test_a", ("P01", "P02"))]) == []


@pytest.mark.parametrize(
    ("read", "marked", "problem"),
    [
        (READ, [Marker("a.py", "", ("P01",))], "P02 has no test"),
        (
            READ[:1],
            [Marker("a.py", "test_a", ("P01", "P7"))],
            "a.py::test_a: there is no promise P7",
        ),
        (READ[:1], [Marker("a.py", "", ("P01", "P7"))], "a.py: there is no promise P7"),
        (
            READ[:1],
            [Marker("a.py", "", ("P01",)), Marker("a.py", "test_a", ())],
            "a.py::test_a: the marker names no promise",
        ),
        (READ[:1] * 2, [Marker("a.py", "", ("P01",))], "P01 is used for two promises"),
    ],
)
def test_a_disagreement_between_promises_and_markers_is_reported(read, marked, problem):
    assert promises.problems(read, marked) == [problem]


def test_the_table_lists_the_tests_of_each_promise():
    marked = [
        Marker("tests/test_x.py", "", ("P01",)),
        Marker("tests/test_x.py", "test_a", ("P01",)),
        Marker("tests/test_y.py", "test_b", ("P02", "P01")),
        Marker("tests/test_y.py", "test_c", ("P02",)),
    ]
    assert promises.table(READ, marked) == (
        "## Files\n\n"
        "### P01\n\nA write is atomic.\n\n"
        "- `tests/test_x.py`\n"
        "- `tests/test_y.py`: `test_b`\n\n"
        "### P02\n\nNames are bytes.\n\n"
        "- `tests/test_y.py`: `test_b`, `test_c`\n"
    )


def test_a_new_marker_makes_the_page_out_of_date():
    before = [Marker("tests/test_y.py", "test_b", ("P01", "P02"))]
    after = [*before, Marker("tests/test_y.py", "test_c", ("P02",))]
    assert promises.table(READ, before) != promises.table(READ, after)
