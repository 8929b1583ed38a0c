"""The page of grounds says what this run found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import asked
from tests.matrix import page, record
from tests.matrix.record import REPOSITORY

SUITES = {"contract": "conformance", "security": "security"}


def _write_down_our_own(config: pytest.Config) -> None:
    """The first ground is asked by this very run, when it is one of whole suites."""
    for suite, directory in SUITES.items():
        found = asked.outcome(config).found(suite, "local")
        files = {path.name for path in (REPOSITORY / "tests" / directory).glob("test_*.py")}
        whole = files - {"test_as_ordinary_user.py"} == set(found["files"])
        if whole and not config.option.keyword and found["passed"]:
            record.put("local", suite, found, every_day="")


@pytest.mark.root
def test_the_page_of_platforms_has_the_recorded_results(pytestconfig):
    _write_down_our_own(pytestconfig)
    assert page.wrong() == {}, "run scripts/matrix.py"


def test_the_page_of_platforms_survives_a_round_trip():
    script = page.script()
    cells = {
        "contract local": _cell("local", "contract", {}),
        "security oci": _cell(
            "oci", "security", {"no bash": ["test_a.py"], "no (x)": ["test_b.py"]}
        ),
        "security gvisor": {**_cell("gvisor", "security", {}), "failed": ["x"]},
    }
    said = script.said(script.render(cells))
    assert said["contract local"] == ("passes", set())
    assert said["security oci"] == ("passes", {"no bash", "no (x)"})
    assert said["security gvisor"] == ("**fails**", set())
    assert said["contract gvisor"] == ("not run", set())


def test_the_page_names_every_platform_and_suite():
    script = page.script()
    text = Path(script.PAGE).read_text()
    assert [name for name, (mark, _) in script.said(text).items() if mark != "passes"] == []
    assert len(script.said(text)) == len(script.GROUNDS) * len(script.SUITES)


def _cell(ground: str, suite: str, not_asked: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "ground": ground,
        "suite": suite,
        "passed": 1,
        "failed": [],
        "not_asked": not_asked,
        "every_day": "",
    }
