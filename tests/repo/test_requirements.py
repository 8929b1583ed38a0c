"""Each requirement of the source documents has what its state needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.seeds.documents import documents
from tests.seeds.requirements import FILE, Requirement, problems, read, tables

THIS = "tests/repo/test_requirements.py::test_a_valid_requirement_is_accepted"
LONG = "tests/sdks/test_typescript.py::test_the_tests_use_the_types_of_the_client"
LONG_FILE = (
    "tests/deploy/test_runtime_images.py"
    "::test_programs_of_a_runtime_image_work_in_a_confined_container"
)
FINE = Requirement("000", "Goals", "It runs", "works", "", (THIS,))


def test_every_requirement_has_a_state_and_the_tests_that_show_it():
    assert problems(read(FILE.read_text())) == []


def test_there_are_requirements_of_every_document():
    found = {one.document for one in read(FILE.read_text())}
    assert found == {one.id for one in documents()}


def test_a_valid_requirement_is_accepted():
    assert problems([FINE]) == []
    assert problems([replace(FINE, state="missing", reason="Not built.", tests=())]) == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"tests": ()}, "works requires a test"),
        ({"state": "partly", "reason": "Half.", "tests": ()}, "partly requires a test"),
        ({"state": "replaced"}, "replaced requires a reason"),
        ({"state": "missing", "tests": ()}, "missing requires a reason"),
        ({"state": "missing", "reason": "Not built."}, "it is missing and has a test"),
        ({"state": "done"}, "'done' is not a state"),
        ({"tests": (f"{THIS}_more",)}, f"test {THIS}_more does not exist"),
        (
            {"tests": ("tests/repo/test_gone.py::test_x",)},
            "test tests/repo/test_gone.py::test_x does not exist",
        ),
        ({"tests": (LONG, LONG_FILE)}, "shows nothing of it, only `make test-long`"),
        ({"tests": ("tests/repo",)}, "test tests/repo does not exist"),
    ],
)
def test_a_requirement_without_what_its_state_needs_is_reported(changes, complaint):
    found = problems([replace(FINE, **changes)])
    assert any(complaint in one for one in found), found


def test_a_long_test_is_enough_beside_another_and_for_what_does_not_work_completely():
    assert problems([replace(FINE, tests=(THIS, LONG))]) == []
    assert problems([replace(FINE, state="partly", reason="Half.", tests=(LONG,))]) == []


def test_a_duplicate_requirement_is_reported():
    assert problems([FINE, FINE]) == ["000, Goals, It runs: it is there twice"]


def test_the_table_shows_document_requirement_state_and_test():
    table = tables([FINE, replace(FINE, text="It flies", state="missing", reason="No.", tests=())])
    title = next(one.title for one in documents() if one.id == "000")
    assert f"| {title} | 2 | 1 | 0 | 0 | 1 |" in table
    assert f"| Goals | It runs | works | `{THIS}` |\n|  | It flies | missing: No. |  |" in table
