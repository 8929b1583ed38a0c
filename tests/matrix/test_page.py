"""The page of tested platforms shows the results of this run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.matrix import page
from tests.matrix.runs import FOLDERS
from tests.ordinary_user import REPOSITORY
from tests.platform_choice import CLUSTER_TITLES, PARTS, TITLES

if TYPE_CHECKING:
    from tests.platform_markers import Found

EVERY_CELL = [
    f"{suite} {platform}" for platform in (*TITLES, *CLUSTER_TITLES) for suite in page.SUITES
]


def _found(passed: int = 1, failed: tuple[str, ...] = (), **not_asked: list[str]) -> Found:
    return {
        "passed": passed,
        "failed": list(failed),
        "skipped": [],
        "not_asked": {why.replace("_", " "): files for why, files in not_asked.items()},
        "files": [],
        "seconds": 1.0,
    }


def test_page_is_read_as_it_was_written():
    text = page.render(
        {
            "contract local": _found(),
            "security oci": _found(no_bash=["test_a.py"], no_python=["test_b.py"]),
            "security gvisor": _found(failed=("x",)),
        }
    )
    cells = page.parse(text)
    assert cells["contract local"] == ("passes", set())
    assert cells["security oci"] == ("passes", {"no bash", "no python"})
    assert cells["security gvisor"] == ("**fails**", set())
    assert cells["contract gvisor"] == ("not run", set())


def test_what_a_run_did_not_include_stays_on_the_page():
    found = {name: _found(no_bash=["test_a.py", "test_b.py"]) for name in EVERY_CELL}
    text = page.render(found)
    changed = {"contract kubernetes": _found(), "security kubernetes": _found(no_pid=["test_c.py"])}
    assert page.render({**page.kept(text), **changed}) == page.render({**found, **changed})


def test_page_of_this_repository_names_every_platform_and_suite():
    cells = page.parse(page.PAGE.read_text())
    assert [name for name, (mark, _) in cells.items() if mark != "passes"] == []
    assert sorted(cells) == sorted(EVERY_CELL)


def test_page_of_this_repository_names_the_parts():
    _, _, parts = page.PAGE.read_text().partition(page.DAILY)
    _, _, rendered = page.render({}).partition(page.DAILY)
    assert parts == rendered


def test_parts_name_files_that_exist():
    for (suite, _), part in PARTS.items():
        folder = REPOSITORY / FOLDERS[suite]
        assert [name for name in part.files if not (folder / f"test_{name}.py").exists()] == []


def test_check_accepts_a_run_on_every_platform():
    found = {name: _found() for name in EVERY_CELL}
    assert list(page.problems(page.render(found), found)) == []


def test_check_names_a_platform_that_did_not_run_or_failed():
    found = {name: _found() for name in EVERY_CELL}
    text = page.render(found)
    del found["contract docker/bind"]
    found["security gvisor"] = _found(passed=0)
    found["contract oci"] = _found(failed=("test_x",))
    assert sorted(page.problems(text, found)) == [
        "contract docker/bind: not run",
        "contract oci: **fails**",
        "security gvisor: not run",
    ]


def test_check_of_a_cluster_asks_for_its_own_platforms():
    found = {name: _found() for name in EVERY_CELL if "kubernetes" in name}
    text = page.render({name: _found() for name in EVERY_CELL})
    assert list(page.problems(text, found, CLUSTER_TITLES)) == []
    del found["security kubernetes"]
    assert list(page.problems(text, found, CLUSTER_TITLES)) == ["security kubernetes: not run"]


def test_check_names_a_reason_that_the_page_does_not_have():
    found = {name: _found() for name in EVERY_CELL}
    text = page.render(found)
    found["contract oci"] = _found(new=["test_a.py"])
    (line,) = page.problems(text, found)
    assert line.startswith("contract oci: the page does not name every reason")
