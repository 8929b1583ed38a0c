"""`agent …` and `workflow …` without a daemon, on the unisolated backend, with a scripted model."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from tests.agents.agency import FLOW, WRITER, files_in, played
from tests.cli.conftest import UNISOLATED
from tests.models.server import in_thread


@pytest.fixture(scope="module")
def model():
    with in_thread(played) as one:
        yield one


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch, model):
    files_in(tmp_path)
    monkeypatch.setenv("SANDKASTEN_AGENTS_DIRS", str(tmp_path / "agents"))
    monkeypatch.setenv("SANDKASTEN_WORKFLOWS_DIRS", str(tmp_path / "workflows"))
    monkeypatch.setenv("SANDKASTEN_MODELS_BASE_URL", model.base_url)
    return tmp_path


def test_an_agents_result_is_on_stdout_and_progress_on_stderr(cli):
    done = cli("agent", "run", "writer", "hello", "--follow")
    assert (done.status, done.out) == (0, "written\n")
    assert done.err.startswith("run run_")
    assert "tool.called" in done.err
    quiet = cli("agent", "run", "writer", "hello")
    assert quiet.out == "written\n"
    assert len(quiet.err.splitlines()) == 1


def test_an_agent_file_gets_variables_and_json_output_is_complete(cli, files):
    done = cli("agent", "run", str(files / "agents" / "plain.prompt"), "--var", "word=x", "--json")
    told = json.loads(done.out)
    assert (done.status, told["status"], told["output"]) == (0, "completed", "plainly")
    assert told["variables"] == {"word": "x"}
    (files / "values.json").write_text('{"word": "y"}')
    done = cli("agent", "run", "plain", "--variables", f"@{files}/values.json", "--json")
    assert json.loads(done.out)["variables"] == {"word": "y"}


def test_the_exit_status_shows_how_a_run_ended(cli, files):
    (files / "fails.prompt").write_text(WRITER.replace("You are the writer.", "I fail."))
    failed = cli("agent", "run", str(files / "fails.prompt"), "x")
    assert (failed.status, failed.out) == (1, "")
    assert "error: " in failed.err
    slow = WRITER.replace("model: scripted", "model: scripted\ntimeout_seconds: 0.3")
    (files / "slow.prompt").write_text(slow)
    assert cli("agent", "run", str(files / "slow.prompt"), "hang").status == 124
    unknown = cli("agent", "run", "nobody", "x")
    assert (unknown.status, unknown.out) == (125, "")
    assert "hint: " in unknown.err
    assert cli("agent", "run", "plain").status == 125
    assert cli("agent", "run", "plain", "--detach", "--var", "word=x").status == 125
    assert cli("agent", "run", "plain", "--variables", "[1]").status == 2
    assert cli("agent", "run", "plain", "--var", "word").status == 2


def test_agents_are_listed_shown_and_validated(cli, files):
    assert [line.split()[0] for line in cli("agent", "list").out.splitlines()] == [
        "NAME",
        "caller",
        "plain",
        "reader",
        "writer",
    ]
    assert json.loads(cli("agent", "show", "writer", "--json").out)["mode"] == "code"
    assert "scripted" in cli("agent", "show", str(files / "agents" / "writer.prompt")).out
    assert cli("agent", "validate", "writer", "reader").out == "writer: ok\nreader: ok\n"
    (files / "bad.prompt").write_text("---\nmodel: [\n---\n")
    bad = cli("agent", "validate", "writer", str(files / "bad.prompt"))
    assert (bad.status, bad.out) == (1, "writer: ok\n")
    assert "error: " in bad.err


def test_a_workflow_runs_and_is_inspected_and_listed(cli, files):
    done = cli("workflow", "run", "flow", "--input", '{"text": "abc"}', "--follow", "--json")
    told = json.loads(done.out)
    assert (done.status, told["status"], told["output"]["said"]) == (0, "completed", "write abc")
    assert "step.ended" in done.err
    listed = json.loads(cli("workflow", "runs", "--json").out)
    assert [one["id"] for one in listed] == [told["id"]]
    assert len(json.loads(cli("agent", "runs", "--json").out)) == 2
    inspected = json.loads(cli("workflow", "inspect", told["id"], "--json").out)
    assert inspected["state"]["steps"] == 3
    assert inspected["events"][-1]["type"] == "run.ended"
    assert told["id"] in cli("workflow", "inspect", told["id"]).out
    cancelled = cli("workflow", "cancel", told["id"], "--json")
    assert json.loads(cancelled.out)["status"] == "completed"
    assert cli("workflow", "resume", told["id"]).status == 125
    assert cli("workflow", "inspect", "run_none").status == 125


def test_workflows_are_drawn_and_checked(cli, files):
    assert cli("workflow", "graph", "flow").out.startswith("flowchart TD\n")
    assert json.loads(cli("workflow", "graph", "flow", "--json").out)["nodes"]
    (files / "bad.yaml").write_text(FLOW.replace("type: end", "type: nothing"))
    bad = cli("workflow", "validate", str(files / "bad.yaml"))
    assert bad.status == 1
    assert "error: " in bad.err
    assert cli("workflow", "validate", "flow").out == "flow: ok\n"
    assert cli("workflow", "list", "--json").status == 0
    assert cli("workflow", "show", "flow").status == 0
    assert cli("workflow", "run", "flow", "--input", "{").status == 2


def test_an_unreadable_file_does_not_prevent_checking_the_others(cli, files):
    (files / "latin.prompt").write_bytes(b"Gr\xfc\xdfe")
    done = cli("agent", "validate", str(files / "latin.prompt"), "nobody", "writer")
    assert (done.status, done.out) == (1, "writer: ok\n")
    assert "latin.prompt is not valid UTF-8" in done.err
    assert "agent 'nobody' not found" in done.err


def test_complaints_about_several_files_name_the_file(cli, files):
    (files / "one.prompt").write_text("---\nmax_steps: many\nnmae: x\n---\nHi\n")
    (files / "two.prompt").write_text("---\nmodel: scripted\nnmae: x\n---\nHi\n")
    alone = cli("agent", "validate", str(files / "two.prompt"))
    assert alone.err == "warning: the frontmatter has no field 'nmae' (did you mean name?)\n"
    done = cli("agent", "validate", str(files / "one.prompt"), str(files / "two.prompt"))
    assert "error: one: max_steps must be" in done.err
    assert "warning: two: the frontmatter has no field 'nmae'" in done.err


def test_several_checked_files_are_one_json_document(cli, files):
    (files / "latin.prompt").write_bytes(b"Gr\xfc\xdfe")
    done = cli("agent", "validate", "writer", str(files / "latin.prompt"), "--json")
    fine, wrong = json.loads(done.out)
    assert (done.status, fine["name"], fine["error"]) == (1, "writer", None)
    assert (wrong["name"], wrong["error"]["code"]) == ("latin", "FILE_TROUBLE")
    assert json.loads(cli("agent", "validate", "writer", "--json").out)["name"] == "writer"


@pytest.mark.promise("P61")
def test_a_run_prints_the_warnings_about_its_file(cli, files):
    (files / "typo.prompt").write_text(WRITER.replace("sandbox: ", "sandbx: "))
    done = cli("agent", "run", str(files / "typo.prompt"), "x")
    assert "warning: the frontmatter has no field 'sandbx' (did you mean sandbox?)\n" in done.err
    (files / "typo.yaml").write_text(FLOW.replace("steps:", "nmae: x\nsteps:", 1))
    done = cli("workflow", "run", str(files / "typo.yaml"), "--input", '{"text": "abc"}')
    assert 'warning: nmae: is not a known field (did you mean "name"?)\n' in done.err
    assert "warning" not in cli("agent", "run", "writer", "x").err


def test_the_list_shows_the_errors_of_an_agent(cli, files):
    (files / "agents" / "bad.prompt").write_text("---\nmodel: 5\n---\nHi\n")
    row = next(line for line in cli("agent", "list").out.splitlines() if "bad" in line)
    assert row.split("  ")[0] == "bad"
    assert "model must be" in row


def test_each_problem_of_a_workflow_has_a_hint(cli, files):
    (files / "bad.yaml").write_text(
        "id: bad\nsteps:\n"
        "  - {id: one, typ: agent, agent: writer}\n"
        "  - {id: two, type: agent, agent: writer, next: tow}\n"
    )
    done = cli("workflow", "validate", str(files / "bad.yaml"))
    assert done.status == 1
    assert 'MISSING_TYPE steps[0]: the step has no type (write "type" for "typ")\n' in done.err
    assert '"tow" is not one of these steps (did you mean "two"?)\n' in done.err


def test_an_unknown_status_of_runs_is_refused(cli):
    done = cli("agent", "runs", "--status", "done")
    assert (done.status, done.out) == (125, "")
    assert "running, completed, failed, cancelled or lost" in done.err


def test_a_number_passed_as_a_string_gets_a_hint(cli, files):
    (files / "n.prompt").write_text(
        "---\nmodel: scripted\ninput: {schema: {days: integer}}\n---\n{{days}}\n"
    )
    done = cli("agent", "run", str(files / "n.prompt"), "--var", "days=3")
    assert done.status == 125
    assert "hint: --var gives texts; for other values: --variables '{\"days\": …}'\n" in done.err


def test_hints_about_runs_name_the_command(cli):
    assert (
        "hint: list the runs with `sandkasten agent runs`"
        in cli("agent", "inspect", "run_none").err
    )


def test_a_task_on_stdin_has_to_be_utf_8(process):
    done = process("agent", "run", "writer", "-", stdin=b"\xff\xfe")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"stdin is not valid UTF-8" in done.stderr


def test_output_that_ends_with_a_newline_gets_no_second_one(cli):
    assert not cli("workflow", "graph", "flow").out.endswith("\n\n")


@pytest.mark.promise("P68")
def test_an_interrupted_run_is_one_json_document():
    words = [*UNISOLATED, "agent", "run", "writer", "hang", "--json", "--follow"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if b"run.started" in line:
                process.send_signal(signal.SIGINT)
                break
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(out)["status"] == "cancelled"
