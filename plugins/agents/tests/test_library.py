"""The operator's directories of agents and workflows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandkasten.errors import AgentNotFound, InvalidAgent, InvalidWorkflow, WorkflowNotFound
from sandkasten_agents.definition_info import described_entry
from sandkasten_agents.definitions.library import Library

PROMPTS = Path(__file__).parent / "prompts"
WORKFLOW = "id: review\nsteps: []\n"


def write(path: Path, text: str = "Hello.") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(library: Library) -> list[str]:
    return [entry.name for entry in library.entries("agent")]


def test_agents_are_listed_with_their_description():
    [first] = [
        described_entry(entry)
        for entry in Library([PROMPTS]).entries("agent")
        if entry.name == "Log Analyzer"
    ]
    assert first.kind == "agent"
    assert first.description == "Analyzes log files and computes statistics"
    assert first.path == str(PROMPTS / "log-analyzer.prompt")
    assert first.source == (PROMPTS / "log-analyzer.prompt").read_text()
    assert (first.error, first.warnings) == (None, ())
    assert first.fields["mode"] == "compute"
    assert first.fields["sandbox"]["runtime"] == "python"
    assert first.fields["model"] == "openai/gpt-4o"


@pytest.mark.parametrize("name", ["Log Analyzer", "log-analyzer", "LOG ANALYZER"])
def test_an_agent_is_found_by_its_name_and_by_its_slug(name):
    assert Library([PROMPTS]).agent(name).name == "Log Analyzer"


def test_an_agent_is_found_by_the_name_of_its_file_too(tmp_path):
    write(tmp_path / "one_file.prompt", "---\nmetadata: {name: Another Name}\n---\nHi.")
    library = Library([tmp_path])
    assert library.agent("one_file") is library.agent("another-name")


def test_an_unknown_agent_is_reported_with_the_nearest_name():
    with pytest.raises(AgentNotFound) as caught:
        Library([PROMPTS]).agent("log-analyser")
    assert caught.value.message == "agent 'log-analyser' not found"
    assert caught.value.hint == "did you mean log-analyzer?"


def test_without_any_agent_the_hint_names_the_setting(tmp_path):
    with pytest.raises(AgentNotFound) as caught:
        Library([tmp_path, tmp_path / "missing"]).agent("x")
    assert "agents.dirs" in caught.value.hint


@pytest.mark.promise("P61")
def test_a_broken_file_is_listed_with_its_error_and_does_not_affect_others(tmp_path):
    write(tmp_path / "bad.prompt", "---\na: *b\n---\nHi.")
    (tmp_path / "bytes.prompt").write_bytes(b"\xff")
    write(tmp_path / "good.prompt")
    library = Library([tmp_path])
    assert names(library) == ["bad", "bytes", "good"]
    bad, bytes_, good = library.entries("agent")
    assert described_entry(bad).error == {
        "code": "INVALID_AGENT",
        "message": "the frontmatter of agent 'bad' uses a YAML alias on line 2",
        "hint": "write the value out",
    }
    assert bytes_.error is not None
    assert good.error is None
    with pytest.raises(InvalidAgent, match="YAML alias"):
        library.agent("bad")
    assert library.agent("good").template == "Hello."


def test_changed_files_are_read_again_and_others_are_not(tmp_path):
    changing = write(tmp_path / "a.prompt", "One.")
    write(tmp_path / "b.prompt", "Same.")
    library = Library([tmp_path])
    kept = library.agent("b")
    changing.write_text("Two, longer.")
    assert library.agent("a").template == "Two, longer."
    assert library.agent("b") is kept
    changing.unlink()
    assert names(library) == ["b"]


def test_directories_are_searched_one_level_deep(tmp_path):
    write(tmp_path / "a.prompt")
    write(tmp_path / "team" / "b.prompt")
    write(tmp_path / "team" / "deeper" / "c.prompt")
    write(tmp_path / ".hidden" / "d.prompt")
    assert names(Library([tmp_path])) == ["a", "b"]


def test_of_two_agents_with_one_name_the_first_is_used(tmp_path):
    write(tmp_path / "mine" / "a.prompt", "Mine.")
    write(tmp_path / "yours" / "a.prompt", "Yours.")
    library = Library([tmp_path / "mine", tmp_path / "yours"])
    assert names(library) == ["a"]
    assert library.agent("a").template == "Mine."


@pytest.mark.promise("P61")
def test_a_link_that_leads_outside_is_not_read(tmp_path):
    secret = write(tmp_path / "outside" / "secret.prompt", "s3cret")
    inside = tmp_path / "agents"
    write(inside / "real.prompt", "Real.")
    (inside / "out.prompt").symlink_to(secret)
    (inside / "within.prompt").symlink_to(inside / "real.prompt")
    (inside / "directory").symlink_to(secret.parent)
    library = Library([inside])
    assert names(library) == ["out", "real", "within"]
    with pytest.raises(
        InvalidAgent, match=r"out\.prompt is a link that points outside its directory"
    ):
        library.agent("out")
    assert "s3cret" not in repr(library.entries("agent"))
    assert library.agent("within").template == "Real."


def test_a_special_file_does_not_block_the_library(tmp_path):
    os.mkfifo(tmp_path / "pipe.prompt")
    (tmp_path / "dir.prompt").mkdir()
    (tmp_path / "gone.prompt").symlink_to(tmp_path / "nowhere")
    write(tmp_path / "good.prompt")
    errors = {entry.name: entry.error for entry in Library([tmp_path]).entries("agent")}
    assert set(errors) == {"pipe", "dir", "gone", "good"}
    assert [name for name, error in errors.items() if error is None] == ["good"]


def test_a_large_file_is_refused_without_reading_it_completely(tmp_path):
    with (tmp_path / "big.prompt").open("wb") as file:
        file.truncate(10**12)
    [big] = Library([tmp_path]).entries("agent")
    assert big.error is not None
    assert big.error.message == "big.prompt is larger than 1048576 bytes"
    assert big.source == ""


def test_workflows_are_found_by_the_name_of_their_file(tmp_path):
    write(tmp_path / "code-review.yaml", WORKFLOW)
    write(tmp_path / "other.yml", WORKFLOW)
    write(tmp_path / "agent.prompt")
    library = Library([tmp_path])
    assert [entry.name for entry in library.entries("workflow")] == ["code-review", "other"]
    assert library.workflow_source("Code Review") == WORKFLOW
    assert library.workflow_sources() == [("code-review", WORKFLOW), ("other", WORKFLOW)]
    with pytest.raises(WorkflowNotFound) as caught:
        library.workflow_source("code-reviw")
    assert caught.value.hint == "did you mean code-review?"


def test_a_workflow_that_is_too_large_is_refused(tmp_path):
    write(tmp_path / "big.yaml", "#" * 300_000)
    with pytest.raises(InvalidWorkflow, match="larger than 262144 bytes"):
        Library([tmp_path]).workflow_source("big")
