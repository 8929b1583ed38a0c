"""Prompt files: every field, and how an invalid file is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkasten.errors import InvalidAgent
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten_agents.definitions.prompt_file import Agent, parse_agent, slug
from sandkasten_tools.calls.agent_sandbox import AgentSandbox

PROMPTS = Path(__file__).parent / "prompts"


def agent(frontmatter: str, template: str = "Hello.", name: str = "it") -> Agent:
    return parse_agent(f"---\n{frontmatter}\n---\n{template}\n", name)


def refusal(text: str | bytes) -> InvalidAgent:
    with pytest.raises(InvalidAgent) as caught:
        parse_agent(text, "it")
    return caught.value


@pytest.mark.promise("P41")
def test_the_published_compute_example_is_read_unchanged():
    found = parse_agent((PROMPTS / "log-analyzer.prompt").read_bytes(), "log-analyzer")
    assert (found.name, found.slug, found.model) == (
        "Log Analyzer",
        "log-analyzer",
        "openai/gpt-4o",
    )
    assert found.description == "Analyzes log files and computes statistics"
    assert found.sandbox == AgentSandbox(mode="compute", runtime="python")
    assert found.input_schema == {
        "type": "object",
        "properties": {
            "log_data": {"type": "string", "description": "Raw log data to analyze"},
        },
        "required": ["log_data"],
    }
    assert found.output_schema is not None
    assert list(found.output_schema["properties"]) == ["total_lines", "error_count", "top_errors"]
    assert found.output_format == "json"
    assert found.template.startswith("You are a log analysis agent.")
    assert found.template.endswith("Return the analysis results in structured format.")
    assert found.warnings == ()


@pytest.mark.promise("P41")
def test_the_published_code_example_is_read_unchanged():
    found = parse_agent((PROMPTS / "python-developer.prompt").read_bytes(), "x")
    assert found.name == "Python Developer"
    assert found.sandbox == AgentSandbox(
        mode="code",
        runtime="python",
        options=SandboxOptions(
            image="python:3.11-slim",
            limits={"cpu_millicores": 1000, "memory_mb": 2048, "workspace_mb": 500},
            idle_timeout_seconds=600.0,
        ),
    )
    assert found.warnings == ()


@pytest.mark.promise("P41")
def test_the_published_design_example_is_read_unchanged():
    found = parse_agent((PROMPTS / "code-developer.prompt").read_bytes(), "x")
    assert found.sandbox == AgentSandbox(
        mode="code",
        runtime="linux",
        session="workflow",
        options=SandboxOptions(
            limits={"max_file_size_bytes": 10_485_760, "max_files": 100}, idle_timeout_seconds=300.0
        ),
    )
    assert found.warnings == ()


def test_every_field_is_read():
    found = agent(
        """
model: m/large
config: {temperature: 0.2, maxOutputTokens: 100}
input:
  schema: {city: "string, where", days?: integer}
  default: {days: 3}
output: {format: json, schema: {answer: string}}
metadata: {name: Weather Teller, description: Tells it., owner: me}
tools: [sandbox_run]
agents: [critic, Log Analyzer]
max_steps: 7
max_tokens: 5000
timeout_seconds: 90
sandbox: node
variant: short
version: "3"
station.team: ops
station.level: 2
"""
    )
    assert found == Agent(
        name="Weather Teller",
        template="Hello.",
        description="Tells it.",
        model="m/large",
        config={"temperature": 0.2, "maxOutputTokens": 100},
        input_schema={
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "where"},
                "days": {"type": ["integer", "null"]},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
        input_defaults={"days": 3},
        output_schema={
            "type": "object",
            "properties": {"answer": {"type": "string"}},
            "required": ["answer"],
            "additionalProperties": False,
        },
        output_format="json",
        sandbox=AgentSandbox(runtime="node"),
        agents=("critic", "Log Analyzer"),
        tools=("sandbox_run",),
        max_steps=7,
        max_tokens=5000,
        timeout_s=90.0,
        variant="short",
        metadata={"name": "Weather Teller", "description": "Tells it.", "owner": "me"},
        ext={"station": {"team": "ops", "level": 2}},
        warnings=(),
        source=found.source,
        first_line=22,
    )


def test_a_file_without_frontmatter_is_an_agent_without_a_sandbox():
    found = parse_agent("Say hello.", "greeter")
    assert (found.name, found.template, found.sandbox) == ("greeter", "Say hello.", None)


def test_a_licence_comment_may_precede_the_frontmatter():
    found = parse_agent("# Copyright\n\n---\nmodel: m\n---\n\nHi.\n", "it")
    assert (found.model, found.template, found.first_line) == ("m", "Hi.", 7)


def test_windows_line_ends_are_read():
    assert parse_agent("---\r\nmodel: m\r\n---\r\nHi\r\nyou\r\n", "it").template == "Hi\nyou"


@pytest.mark.parametrize(
    ("frontmatter", "name"),
    [("metadata: {name: Ä b}\nname: c", "Ä b"), ("name: c", "c"), ("model: m", "it")],
)
def test_the_name_comes_from_the_metadata_the_field_or_the_file(frontmatter, name):
    assert agent(frontmatter).name == name


def test_a_name_is_matched_without_case_and_with_dashes_for_spaces():
    assert slug(" Log  Analyzer ") == slug("log-analyzer") == "log-analyzer"
    assert slug("a_b") != slug("a-b")


@pytest.mark.promise("P61")
def test_an_unknown_field_warns_with_the_nearest_spelling():
    found = agent("modell: m\ninput: {shema: {}}\noutput: {formt: json}")
    assert found.warnings == (
        "the frontmatter has no field 'modell' (did you mean model?)",
        "input has no field 'shema' (did you mean schema?)",
        "output has no field 'formt' (did you mean format?)",
    )


def test_warnings_about_the_sandbox_field_are_reported_with_the_agent():
    assert agent("sandbox: {modes: code}").warnings == (
        "sandbox has no field 'modes' (did you mean mode?)",
    )


@pytest.mark.parametrize(
    ("frontmatter", "start"),
    [
        ("model: [a]", "model must be a string"),
        ("config: 3", "config must be a mapping"),
        ("tools: sandbox_run", "tools must be a list of strings"),
        ("agents: [1]", "agents[0] must be a string"),
        ("max_steps: 0", "max_steps must be from 1 to 1000"),
        ("max_steps: many", "max_steps must be a number"),
        ("max_tokens: 1.5", "max_tokens must be a whole number"),
        ("timeout_seconds: -1", "timeout_seconds must be from"),
        ("metadata: x", "metadata must be a mapping"),
        ('metadata: {name: "a\\nb"}', "'a\\nb' is not a valid agent name"),
        ("output: {format: yaml}", "output.format is not valid: 'yaml'"),
        ("output: {format: text, schema: {a: string}}", "output.format is text"),
        ("input: {schema: string}", "input.schema must be of type object"),
        ("input: {schema: {a: strnig}}", "input.schema is neither a JSON Schema nor Picoschema"),
        ("input: {schema: {a(enum): x, b?(enum): 3}}", "input.schema is"),
        ("output: {schema: {type: object, properties: 3}}", "output.schema is not a JSON Schema"),
        (
            "output: {schema: {type: object, properties: {a: {$ref: 'http://127.0.0.1/x'}}}}",
            "output.schema is not a JSON Schema: the reference",
        ),
        ("sandbox: --privileged", "sandbox: '--privileged' is not a valid image name"),
        ("sandbox: {image: -v}", "sandbox.image: '-v' is not a valid image name"),
        ("- a", "the frontmatter of agent 'it' is not a mapping"),
        ("a: &x 1", "the frontmatter of agent 'it' has a YAML anchor on line 2"),
        ("model: a\nmodel: b", "the frontmatter of agent 'it' has the key 'model' twice on line 3"),
        ("ext: {a: 1}\na.b: 2", "ext.a must be a mapping"),
    ],
)
def test_a_bad_field_is_refused_by_name(frontmatter, start):
    found = refusal(f"---\n{frontmatter}\n---\nHi.\n")
    assert found.message.startswith(start)
    assert found.hint


def test_a_frontmatter_without_an_end_is_refused_with_its_line():
    found = refusal("\n---\nmodel: m\n")
    assert found.message == ("the frontmatter of agent 'it' begins on line 2 but is never closed")
    assert found.details == {"line": 2}


def test_an_error_in_the_template_is_reported_with_the_line_of_the_file():
    found = refusal("---\nmodel: m\n---\n\nHi\n{{#if a}}\n")
    assert found.message == "the template is invalid on line 6: unclosed block"
    assert found.details == {"line": 6}


def test_a_file_of_ten_megabytes_is_refused():
    assert refusal("---\na: " + "x" * 10_000_000 + "\n---\n").message == (
        "agent 'it' is larger than 1048576 bytes"
    )


def test_an_oversized_frontmatter_is_refused_in_a_file_of_allowed_size():
    assert refusal("---\na: " + "x" * 70_000 + "\n---\nHi").message == (
        "the frontmatter of agent 'it' is larger than 65536 bytes"
    )


def test_a_file_that_is_not_utf8_is_refused_with_the_offset():
    assert refusal(b"---\nmodel: \xff\n---\n").details == {"offset": 11, "line": 2}


def test_a_json_schema_without_a_type_is_accepted():
    found = agent("output: {schema: {anyOf: [{type: string}, {type: 'null'}]}}")
    assert found.output_schema == {"anyOf": [{"type": "string"}, {"type": "null"}]}


def test_an_output_of_type_any_accepts_any_json():
    assert agent("output: {schema: any}").output_schema == {}


@given(st.text(max_size=300), st.booleans())
def test_any_text_is_parsed_as_an_agent_or_refused(text, framed):
    source = f"---\n{text}\n---\n{text}" if framed else text
    try:
        found = parse_agent(source, "it")
    except InvalidAgent:
        return
    assert found.name


def test_an_empty_template_is_a_warning():
    (warning,) = parse_agent("---\nmodel: m\n---\n \n", "x").warnings
    assert warning == "the template is empty: the model receives only the task"


def test_an_unknown_picoschema_type_is_reported_with_the_valid_ones():
    with pytest.raises(InvalidAgent) as caught:
        agent("input: {schema: {days: int}}")
    assert "string, number, integer, boolean, null, any" in caught.value.hint
