"""`code` at a prompt, and the image that is built for it. tests/api/test_code.py runs the rest."""

from __future__ import annotations

import pytest

from sandkasten.cli.commands.code import _unfinished

pytestmark = pytest.mark.promise("P80")


@pytest.mark.parametrize(
    ("code", "unfinished"),
    [
        ("x = 1", False),
        ("for i in range(2):", True),
        ("for i in range(2):\n    print(i)", True),
        ("for i in range(2):\n    print(i)\n", False),
        ("f(1,", True),
        ("'''text", True),
        ("1 +* 2", False),
        ("%timeit x", False),
        ("!ls", False),
    ],
)
def test_lines_that_belong_together_are_read_together(code, unfinished):
    assert _unfinished(code) is unfinished


def test_a_sandbox_that_does_not_exist_is_named(cli):
    done = cli("code", "sbx_0123456789abcdef", "-c", "1")
    assert done.status == 125
    assert "hint: " in done.err


def test_datascience_is_built_by_its_name_unless_it_is_a_directory(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = cli("image", "build", "datascience", "--mirror", "file:///nonexistent")
    assert (done.status, "mmdebstrap of bookworm failed" in done.err) == (125, True)
    (tmp_path / "datascience").mkdir()
    done = cli("image", "build", "datascience")
    assert (done.status, "Dockerfile" in done.err) == (125, True)
