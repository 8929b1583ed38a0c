"""The tool schemas as a model sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from sandkasten.errors import InvalidRequest
from sandkasten_tools.adapter_protocols import schema_of
from sandkasten_tools.calls.tool_arguments import checked
from sandkasten_tools.calls.tool_schemas import CONTENTS, TOOLS

SPEC = Path(__file__).resolve().parents[3] / "spec" / "tools"
REQUIRED = {
    "sandbox_run": "code",
    "sandbox_open": "",
    "sandbox_exec": "",
    "sandbox_exec_read": "exec_id",
    "sandbox_exec_wait": "exec_id",
    "sandbox_code": "code",
    "sandbox_fs_write": "path",
    "sandbox_fs_read": "path",
    "sandbox_fs_list": "",
    "sandbox_fs_delete": "path",
    "sandbox_stage_file": "file_key destination",
    "sandbox_publish_file": "source",
    "sandbox_close": "",
}


# What every validator and every model provider understands, of draft 7 and of 2020-12.
KEYWORDS = {
    *("type", "description", "default", "enum", "anyOf", "pattern", "minLength", "maxLength"),
    *("minimum", "maximum", "items", "minItems", "maxItems", "properties", "required"),
    *("additionalProperties", "minProperties", "maxProperties"),
}
DOCUMENT = {"$schema", "$id", "title"}


def accepts(tool: str, **arguments: object) -> bool:
    try:
        checked(TOOLS[tool], arguments)
    except InvalidRequest:
        return False
    return True


def problems(schema: object, where: str = "#") -> list[str]:
    """Return what a strict check of a schema finds, as the inspector of MCP makes it."""
    if not isinstance(schema, dict):
        return [f"{where} is not an object"]
    issues = [f"{where} has {name}" for name in sorted(set(schema) - KEYWORDS)]
    kind = schema.get("type")
    if "anyOf" in schema:
        if kind is not None:
            issues.append(f"{where} has a type beside anyOf")
        for at, variant in enumerate(schema["anyOf"]):
            issues += problems(variant, f"{where}/anyOf/{at}")
    elif not isinstance(kind, str):
        issues.append(f"{where} has the type {kind!r}")
    if kind == "array":
        issues += problems(schema.get("items"), f"{where}/items")
    if kind == "object":
        inner = schema.get("properties", {})
        for name, value in inner.items():
            issues += problems(value, f"{where}/properties/{name}")
        issues += [f"{where} requires {n}" for n in schema.get("required", ()) if n not in inner]
        more = schema.get("additionalProperties")
        if more is None:
            issues.append(f"{where} does not state additionalProperties")
        elif not isinstance(more, bool):
            issues += problems(more, f"{where}/additionalProperties")
    return issues


def test_there_are_thirteen_tools_with_the_required_arguments_of_the_contract():
    needed = {name: " ".join(spec.parameters["required"]) for name, spec in TOOLS.items()}
    assert needed == REQUIRED


def test_only_sandbox_run_is_in_compute_mode():
    assert [name for name, spec in TOOLS.items() if spec.mode == "compute"] == ["sandbox_run"]


@pytest.mark.promise("P65")
def test_the_published_schemas_equal_those_of_the_tools():
    written = {path.stem: json.loads(path.read_text()) for path in SPEC.glob("*.json")}
    assert written == {name: dict(spec.parameters) for name, spec in TOOLS.items()}


@pytest.mark.promise("P65")
@pytest.mark.parametrize("name", REQUIRED)
def test_a_tool_schema_is_accepted_by_model_providers(name):
    schema = TOOLS[name].parameters
    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert not {"anyOf", "oneOf", "allOf", "not", "enum"} & set(schema)
    assert len(TOOLS[name].description) <= 1024
    assert all(value.get("description") for value in schema["properties"].values())


@pytest.mark.promise("P65")
@pytest.mark.parametrize("name", REQUIRED)
def test_a_tool_schema_passes_a_strict_check(name):
    assert "anyOf" not in TOOLS[name].parameters
    assert TOOLS[name].parameters["type"] == "object"
    whole = {key: value for key, value in TOOLS[name].parameters.items() if key not in DOCUMENT}
    assert problems(whole) == []
    assert problems(schema_of(TOOLS[name])) == []
    Draft7Validator.check_schema(schema_of(TOOLS[name]))


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "array"}, "#/items is not an object"),
        ({"type": ["string", "null"]}, "# has the type ['string', 'null']"),
        ({"type": "object", "properties": {"x": False}}, "#/properties/x is not an object"),
        ({"type": "object", "dependentSchemas": {}}, "# has dependentSchemas"),
        ({"type": "object"}, "# does not state additionalProperties"),
        ({"type": "string", "$ref": "x.json"}, "# has $ref"),
        ({"anyOf": [{"minLength": 1}]}, "#/anyOf/0 has the type None"),
    ],
)
def test_the_strict_check_finds_what_it_is_for(schema, problem):
    assert problem in problems(schema)


@pytest.mark.parametrize("name", sorted(set(REQUIRED) - {"sandbox_run", "sandbox_open"}))
def test_the_sandbox_argument_has_two_spellings_and_is_optional(name):
    schema = TOOLS[name].parameters
    assert {"sandbox_id", "session_id"} <= set(schema["properties"])
    assert not {"sandbox_id", "session_id"} & set(schema["required"])


def test_a_command_is_a_string_or_a_list_in_one_of_two_spellings():
    assert accepts("sandbox_exec", cmd="ls")
    assert accepts("sandbox_exec", command=["ls", "-l"])
    assert not accepts("sandbox_exec")
    assert not accepts("sandbox_exec", cmd="ls", command="ls")
    assert not accepts("sandbox_exec", cmd=[])
    assert not accepts("sandbox_exec", cmd=["ls", 1])


def test_file_content_is_given_in_exactly_one_of_five_spellings():
    for spelling in CONTENTS:
        assert accepts("sandbox_fs_write", path="x", **{spelling: ""})
        for other in set(CONTENTS) - {spelling}:
            assert not accepts("sandbox_fs_write", path="x", **{spelling: "", other: ""})
    assert not accepts("sandbox_fs_write", path="x")
    assert accepts("sandbox_fs_write", path="x", content="eA==", encoding="base64")
    assert not accepts("sandbox_fs_write", path="x", text="eA==", encoding="base64")


def test_a_timeout_is_between_one_second_and_an_hour():
    assert accepts("sandbox_run", code="", timeout_seconds=1)
    assert accepts("sandbox_run", code="", timeout_seconds=3600)
    assert not accepts("sandbox_run", code="", timeout_seconds=0.5)
    assert not accepts("sandbox_run", code="", timeout_seconds=3601)


def test_no_description_says_whether_there_is_a_network():
    """The agent's file, the request and the operator decide; the schemas are the same for all."""
    assert [name for name, tool in TOOLS.items() if "network" in json.dumps(tool.parameters)] == []
