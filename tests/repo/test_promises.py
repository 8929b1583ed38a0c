"""Every promise of SPECIFICATION.md is held by a test or a benchmark that exists."""

from __future__ import annotations

from tests.repo import promises, tree

SPECIFICATION = tree.ROOT / "SPECIFICATION.md"


def test_every_promise_names_what_holds_it():
    found = promises.read(SPECIFICATION.read_text())
    assert len(found) >= 10
    assert [line for promise in found for line in promises.trouble(promise, tree.ROOT)] == []


def test_no_two_promises_share_a_name():
    names = [promise.name for promise in promises.read(SPECIFICATION.read_text())]
    assert sorted(names) == sorted(set(names))


def test_a_promise_without_a_holder_or_with_a_wrong_one_is_found(tmp_path):
    (tmp_path / "test_x.py").write_text(
        "def test_here():\n    pass\n\nclass TestA:\n    def test_b(self): ...\n"
    )
    (tmp_path / "y.rs").write_text("#[test]\nfn frames_survive() {}\n")
    text = (
        "# S\n\n"
        "- **P1** good (held by: `test_x.py::test_here`,\n  test_x.py::TestA::test_b)\n"
        "- **P2** renamed (held by: test_x.py::test_gone)\n"
        "- **P3** no file (held by: test_z.py)\n"
        "- **P4** silent\n"
        "- **P5** honest: not yet held\n"
        "- **P6** rust (held by: y.rs::frames_survive, test_x.py::test_here[case])\n\nprose\n"
    )
    found = promises.read(text)
    assert [p.name for p in found] == ["P1", "P2", "P3", "P4", "P5", "P6"]
    assert [line for p in found for line in promises.trouble(p, tmp_path)] == [
        "P2: test_x.py has no test_gone",
        "P3: test_z.py does not exist",
        "P4 names nothing that holds it and does not say: not yet held",
    ]
