"""The tools as a model sees them."""

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


def test_there_are_twelve_and_each_needs_what_the_contract_says():
    needed = {name: " ".join(one.parameters["required"]) for name, one in TOOLS.items()}
    assert needed == TWELVE


def test_only_run_is_of_compute_mode():
    assert [name for name, one in TOOLS.items() if one.mode == "compute"] == ["sandbox_run"]


@pytest.mark.promise("P65")
def test_the_files_of_the_specification_are_the_schemas_the_tools_have():
    written = {path.stem: json.loads(path.read_text()) for path in SPEC.glob("*.json")}
    assert written == {name: dict(one.parameters) for name, one in TOOLS.items()}


@pytest.mark.promise("P65")
@pytest.mark.parametrize("name", TWELVE)
def test_a_schema_is_one_that_providers_of_models_take(name):
    schema = TOOLS[name].parameters
    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert not {"anyOf", "oneOf", "allOf", "not", "enum"} & set(schema)
    assert len(TOOLS[name].description) <= 1024
    assert all(one.get("description") for one in schema["properties"].values())


@pytest.mark.parametrize("name", set(TWELVE) - {"sandbox_run", "sandbox_open"})
def test_the_sandbox_can_be_named_in_both_words_and_need_not_be(name):
    schema = TOOLS[name].parameters
    assert {"sandbox_id", "session_id"} <= set(schema["properties"])
    assert not {"sandbox_id", "session_id"} & set(schema["required"])


def test_a_command_is_a_text_or_a_list_under_one_of_two_names():
    assert accepts("sandbox_exec", cmd="ls")
    assert accepts("sandbox_exec", command=["ls", "-l"])
    assert not accepts("sandbox_exec")
    assert not accepts("sandbox_exec", cmd="ls", command="ls")
    assert not accepts("sandbox_exec", cmd=[])
    assert not accepts("sandbox_exec", cmd=["ls", 1])


def test_what_is_written_is_given_in_exactly_one_of_five_spellings():
    for one in CONTENTS:
        assert accepts("sandbox_fs_write", path="x", **{one: ""})
        for other in set(CONTENTS) - {one}:
            assert not accepts("sandbox_fs_write", path="x", **{one: "", other: ""})
    assert not accepts("sandbox_fs_write", path="x")
    assert accepts("sandbox_fs_write", path="x", content="eA==", encoding="base64")
    assert not accepts("sandbox_fs_write", path="x", text="eA==", encoding="base64")


def test_a_time_is_between_one_second_and_an_hour():
    assert accepts("sandbox_run", code="", timeout_seconds=1)
    assert accepts("sandbox_run", code="", timeout_seconds=3600)
    assert not accepts("sandbox_run", code="", timeout_seconds=0.5)
    assert not accepts("sandbox_run", code="", timeout_seconds=3601)
