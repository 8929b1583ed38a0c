"""`code` at a prompt, and the image that is built for it. tests/api/test_code.py runs the rest."""

from __future__ import annotations

import pytest

from sandkasten.model.commands.code_values import CodeResult
from sandkasten.model.commands.exec_values import ExecNetwork
from sandkasten.model.sandbox.network_refusals import Refusal
from sandkasten_server.cli.code_prompt import unfinished
from sandkasten_server.cli.commands.code import explain

pytestmark = pytest.mark.promise("P80")


@pytest.mark.parametrize(
    ("language", "code", "more"),
    [
        ("python", "x = 1", False),
        ("python", "for i in range(2):", True),
        ("python", "for i in range(2):\n    print(i)", True),
        ("python", "for i in range(2):\n    print(i)\n", False),
        ("python", "f(1,", True),
        ("python", "'''text", True),
        ("python", "1 +* 2", False),
        ("python", "%timeit x", False),
        ("python", "!ls", False),
        ("bash", "for i in 1 2; do", True),
        ("bash", "for i in 1 2; do echo $i; done", False),
        ("bash", "if true; then\n  while false; do :; done", True),
        ("bash", "echo if # for", False),
        ("bash", "f() {", True),
        ("bash", "echo a \\", True),
        ("javascript", "function f() {", True),
        ("javascript", "f('(') // {", False),
        ("r", "c(1,", True),
    ],
)
def test_lines_that_belong_together_are_read_together(language, code, more):
    assert unfinished(code, language) is more


def test_a_sandbox_that_does_not_exist_is_named(cli):
    done = cli("code", "sbx_0123456789abcdef", "-c", "1")
    assert done.status == 125
    assert "hint: " in done.err


def test_what_the_network_refused_is_named_as_for_a_command(capfd):
    refused = Refusal("b.org", 443, "default", "the creator of the sandbox can allow it")
    network = ExecNetwork((refused,))
    explain(CodeResult("ctx_python_0123456789abcdef", "python", network=network))
    assert capfd.readouterr().err.splitlines() == [
        "warning: the network refused b.org:443: no rule allows it",
        "hint: the creator of the sandbox can allow it",
    ]


def test_datascience_is_built_by_its_name_unless_it_is_a_directory(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = cli("image", "build", "datascience", "--mirror", "file:///nonexistent")
    assert (done.status, "mmdebstrap of bookworm failed" in done.err) == (125, True)
    (tmp_path / "datascience").mkdir()
    done = cli("image", "build", "datascience")
    assert (done.status, "Dockerfile" in done.err) == (125, True)
