"""The tool schemas as a model sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from sandkasten.agents.tools.tool_schemas import CONTENTS, TOOLS

SPEC = Path(__file__).resolve().parents[3] / "spec" / "tools"
TWELVE = {
    "sandbox_run": "code",
    "sandbox_open": "",
    "sandbox_exec": "",
    "sandbox_exec_read": "exec_id",
    "sandbox_exec_wait": "exec_id",
    "sandbox_fs_write": "path",
    "sandbox_fs_read": "path",
    "sandbox_fs_list": "",
    "sandbox_fs_delete": "path",
    "sandbox_stage_file": "file_key destination",
    "sandbox_publish_file": "source",
    "sandbox_close": "",
}


def accepts(tool: str, **arguments: object) -> bool:
    return Draft202012Validator(TOOLS[tool].parameters).is_valid(arguments)


def test_there_are_twelve_tools_with_the_required_arguments_of_the_contract():
    needed = {name: " ".join(one.parameters["required"]) for name, one in TOOLS.items()}
    assert needed == TWELVE


def test_only_sandbox_run_is_in_compute_mode():
    assert [name for name, one in TOOLS.items() if one.mode == "compute"] == ["sandbox_run"]


@pytest.mark.promise("P65")
def test_the_published_schemas_equal_those_of_the_tools():
    written = {path.stem: json.loads(path.read_text()) for path in SPEC.glob("*.json")}
    assert written == {name: dict(one.parameters) for name, one in TOOLS.items()}


@pytest.mark.promise("P65")
@pytest.mark.parametrize("name", TWELVE)
def test_a_tool_schema_is_accepted_by_model_providers(name):
    schema = TOOLS[name].parameters
    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert not {"anyOf", "oneOf", "allOf", "not", "enum"} & set(schema)
    assert len(TOOLS[name].description) <= 1024
    assert all(one.get("description") for one in schema["properties"].values())


@pytest.mark.parametrize("name", sorted(set(TWELVE) - {"sandbox_run", "sandbox_open"}))
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
    for one in CONTENTS:
        assert accepts("sandbox_fs_write", path="x", **{one: ""})
        for other in set(CONTENTS) - {one}:
            assert not accepts("sandbox_fs_write", path="x", **{one: "", other: ""})
    assert not accepts("sandbox_fs_write", path="x")
    assert accepts("sandbox_fs_write", path="x", content="eA==", encoding="base64")
    assert not accepts("sandbox_fs_write", path="x", text="eA==", encoding="base64")


def test_a_timeout_is_between_one_second_and_an_hour():
    assert accepts("sandbox_run", code="", timeout_seconds=1)
    assert accepts("sandbox_run", code="", timeout_seconds=3600)
    assert not accepts("sandbox_run", code="", timeout_seconds=0.5)
    assert not accepts("sandbox_run", code="", timeout_seconds=3601)
