"""`run`: the output and the exit status are those of the code."""

from __future__ import annotations

import json

import pytest

from sandkasten.errors import InvalidRequest
from sandkasten_server.cli.commands.run import Job, program_of
from sandkasten_server.cli.options import numbers, pairs


def test_code_runs_and_its_output_is_printed(cli):
    done = cli("run", "-r", "sh", "-c", "echo out; echo err >&2")
    assert (done.status, done.out, done.err) == (0, "out\n", "err\n")


@pytest.mark.parametrize("status", [0, 1, 7, 255])
def test_the_exit_status_is_that_of_the_code(cli, status):
    assert cli("run", "-r", "sh", "-c", f"exit {status}").status == status


def test_a_timeout_exits_with_124_and_a_message(cli):
    done = cli("run", "-r", "sh", "--timeout", "1", "-c", "echo begun; sleep 60")
    assert (done.status, done.out) == (124, "begun\n")
    assert done.err.startswith("error: ")
    assert "hint: " in done.err


def test_options_after_the_file_are_arguments_of_the_code(cli, tmp_path):
    (tmp_path / "a.sh").write_text('echo "$1" "$2" "$3"')
    done = cli("run", "-r", "sh", str(tmp_path / "a.sh"), "words", "-x", "--mine")
    assert (done.status, done.out) == (0, "words -x --mine\n")
    done = cli("run", "-r", "sh", str(tmp_path / "a.sh"), "--", "--json", "-f", "--")
    assert (done.status, done.out) == (0, "--json -f --\n")
    done = cli("run", "-r", "sh", "-c", 'echo "$1" "$2"', "a", "b")
    assert (done.status, done.out) == (0, "a b\n")


@pytest.mark.parametrize("option", ["--file", "--file=data.csv", "-f", "--json", "--no-such", "-i"])
def test_an_option_of_run_after_the_file_is_refused_with_both_ways(cli, tmp_path, option):
    (tmp_path / "a.sh").write_text("echo ran")
    done = cli("run", "-r", "sh", str(tmp_path / "a.sh"), option, "data.csv")
    if option == "--no-such":
        assert (done.status, done.out) == (0, "ran\n")
        return
    assert (done.status, done.out) == (2, "")
    assert f"{option} after {tmp_path / 'a.sh'} is ambiguous" in done.err
    assert f"sandkasten run {option} … {tmp_path / 'a.sh'}; " in done.err
    assert f"sandkasten run {tmp_path / 'a.sh'} -- {option} …" in done.err


def test_an_unknown_option_before_the_file_is_refused_with_the_nearest(cli, tmp_path):
    done = cli("run", "--fil", "x.py")
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        "error: run has no option '--fil'\nhint: did you mean --file? a file of that name is "
        "./--fil\n"
    )
    assert "see sandkasten run --help" in cli("run", "--zzzzzz=1", "x.py").err
    assert cli("run", "-r", "sh", "-c", 'echo "$1"', "--fil").out == "--fil\n"


def test_arguments_after_code_are_its_arguments(cli):
    done = cli("run", "-r", "sh", "-c", 'echo "$1$2"', "a", "b")
    assert done.out == "ab\n"


def test_files_go_in_and_artifacts_come_out(cli, tmp_path):
    (tmp_path / "in.csv").write_text("1,2\n")
    code = "cat in.csv other; echo made > out.txt"
    done = cli(
        *("run", "-r", "sh", "-f", str(tmp_path / "in.csv"), "-f", f"{tmp_path / 'in.csv'}:other"),
        *("-a", "*.txt", "-o", str(tmp_path / "got"), "-c", code),
    )
    assert (done.status, done.out) == (0, "1,2\n1,2\n")
    assert (tmp_path / "got/out.txt").read_text() == "made\n"
    assert "out.txt (5 bytes)" in done.err


def test_an_artifact_that_matches_nothing_is_warned_about(cli, tmp_path):
    code = "echo made > a.txt"
    done = cli(
        *("run", "-r", "sh", "-a", "*.txt", "-a", "out/*.png", "-o", str(tmp_path), "-c", code)
    )
    assert (done.status, done.err.count("warning:")) == (0, 1)
    assert "warning: no file matches --artifact out/*.png\n" in done.err


def test_json_is_one_document_with_the_contracts_fields(cli):
    done = cli("run", "--json", "-r", "sh", "-c", "echo hi; exit 3")
    answer = json.loads(done.out)
    assert done.status == 3
    assert (answer["ok"], answer["stdout"], answer["exit_code"]) == (False, "hi\n", 3)
    assert {"runtime", "duration_ms", "stderr", "artifacts", "limits", "error"} <= set(answer)


def test_environment_reaches_the_code(cli):
    assert cli("run", "-r", "sh", "-e", "A=1=2", "-c", "echo $A").out == "1=2\n"


def test_code_can_come_from_standard_input(process):
    done = process("run", "-r", "sh", "-", "arg", stdin=b'echo "got $1"\n')
    assert (done.stdout, done.returncode) == (b"got arg\n", 0)


def test_standard_input_is_passed_on_when_asked(process):
    done = process("run", "-r", "sh", "--stdin", "-c", "cat", stdin=b"\xff\x00data")
    assert (done.stdout, done.returncode) == (b"\xff\x00data", 0)
    assert process("run", "-r", "sh", "-c", "cat", stdin=b"data").stdout == b""


def test_nothing_to_run_is_an_error_with_a_hint(cli):
    done = cli("run")
    assert done.status == 2
    assert done.err == ("error: no code to run\nhint: pass -c CODE, a FILE, or - for stdin\n")


def test_a_missing_file_is_named(cli, tmp_path):
    done = cli("run", str(tmp_path / "nothing.py"))
    assert done.status == 125
    assert f"reading {tmp_path / 'nothing.py'} failed" in done.err


@pytest.mark.parametrize(
    ("name", "runtime"),
    [("a.py", "python"), ("a.js", "node"), ("a.mjs", "node"), ("a.sh", "bash"), ("a", "python")],
)
def test_the_runtime_follows_from_the_file(tmp_path, name, runtime):
    (tmp_path / name).write_text("x")
    assert program_of(Job(code=None, words=(str(tmp_path / name),))).runtime == runtime
    asked = Job(code=None, words=(str(tmp_path / name),), runtime="sh")
    assert program_of(asked).runtime == "sh"


def test_pairs_and_numbers_are_parsed_strictly():
    assert pairs(["A=1", "B="], "--env") == {"A": "1", "B": ""}
    assert numbers(["a=1", "b=0.5"]) == {"a": 1, "b": 0.5}
    for words in (["A"], ["=x"]):
        with pytest.raises(InvalidRequest):
            pairs(words, "--env")
    with pytest.raises(InvalidRequest):
        numbers(["a=much"])
