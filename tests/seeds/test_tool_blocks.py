"""The tools of the source documents: their schemas, their fields, and calls as written.

A call is made through the toolbox of an agent, on a real sandbox. Its answer has every field that
the document shows, with a value of the same type.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

import pytest

from sandkasten_agents.definitions.sandbox_field import LIMIT_FIELDS
from sandkasten_tools.calls.agent_sandbox import AgentSandbox
from tests.agents.desk import opened
from tests.seeds import go_source
from tests.seeds.documents import ROOT, run_as

if TYPE_CHECKING:
    from sandkasten_tools.calls.agent_sandbox import Mode

TOOLS = {path.stem: json.loads(path.read_text()) for path in (ROOT / "spec/tools").glob("*.json")}
PYTHON = {"string": str, "boolean": bool, "integer": int, "array": list, "object": dict}


def tool_of(struct: str) -> str:
    """Return `sandbox_fs_write` for SandboxFsWriteInput."""
    stem = re.sub(r"(Input|Output)$", "", struct)
    return re.sub(r"(?<!^)(?=[A-Z])", "_", stem).lower()


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def desk(tmp_path_factory, anyio_backend):
    async with opened(
        tmp_path_factory.mktemp("seeds"), images_aliases="python:3.11-slim=host,ubuntu:22.04=host"
    ) as one:
        yield one.asking(AgentSandbox(mode="code"))


@pytest.fixture(scope="module")
async def answers(desk) -> dict[str, dict[str, Any]]:
    """Call every tool with the arguments of the requirements, and return its answer.

    What a tool answers in other cases has another name.
    """
    found: dict[str, dict[str, Any]] = {}

    async def call(tool: str, also: str = "", /, **arguments: Any) -> dict[str, Any]:
        found[also or f"sandbox_{tool}"] = answer = await desk.call(tool, **arguments)
        return answer

    code = "import os; os.makedirs('output'); open('output/result.json', 'w').write('{}')"
    await call("run", code=code, artifacts=["output/*.json"], timeout_seconds=300)
    await call("run", "refused run", code="print(1)", timeout_seconds=9999)
    sandbox = (await call("open"))["sandbox_id"]
    await call(
        "fs_write", sandbox_id=sandbox, path="a/main.py", contents="print(1)", mode="0644",
        overwrite=True,
    )  # fmt: skip
    await call("fs_read", sandbox_id=sandbox, path="a/main.py", max_bytes=1000)
    await call("fs_list", sandbox_id=sandbox, path=".", recursive=True)
    cmd = ["python3", "a/main.py"]
    hangs = ["sleep", "60"]
    running = await call("exec", "streamed exec", sandbox_id=sandbox, cmd=hangs, stream=True)
    await call(
        "exec_wait", "early exec_wait", sandbox_id=sandbox, exec_id=running["exec_id"],
        timeout_seconds=0.1,
    )  # fmt: skip
    await call("exec", "failed exec", sandbox_id=sandbox, cmd=["python3", "missing.py"])
    await desk.call("fs_write", sandbox_id=sandbox, path="raw", contents_b64="/w==")
    await call("fs_read", "binary fs_read", sandbox_id=sandbox, path="raw")
    streamed = await desk.call("exec", sandbox_id=sandbox, cmd=cmd, stream=True)
    exec_id = streamed["exec_id"]
    await call("exec_wait", sandbox_id=sandbox, exec_id=exec_id, timeout_seconds=30)
    await call("exec_read", sandbox_id=sandbox, exec_id=exec_id, since_seq=0, max_chunks=10)
    await call(
        "exec", sandbox_id=sandbox, cmd=cmd, cwd="/workspace", env={"A": "1"},
        timeout_seconds=30, stream=False,
    )  # fmt: skip
    await call("fs_delete", sandbox_id=sandbox, path="a", recursive=True)
    await call("close", sandbox_id=sandbox, delete_workspace=True)
    return found


@pytest.mark.parametrize("source", run_as("schema of a tool"), ids=lambda one: one.id)
def test_the_schema_of_sandbox_run_accepts_what_the_document_says(source):
    wanted, ours = go_source.map_literal(source.text, "schema"), TOOLS["sandbox_run"]
    assert ours["required"] == wanted["required"]
    for name, about in wanted["properties"].items():
        mine = ours["properties"][name]
        assert mine["type"] == about["type"] or (about["type"], mine["type"]) == (
            "integer",
            "number",
        )
        assert set(about.get("enum", ())) <= set(mine.get("enum", ()))
        assert mine.get("minimum", 0) <= about.get("minimum", 0)
        assert mine.get("maximum") == about.get("maximum")


STRUCTS = [
    (one, name)
    for one in run_as("fields of a tool")
    for name in go_source.structs(one.text)
    if name.endswith("Input")
]


@pytest.mark.parametrize(("source", "struct"), STRUCTS, ids=[name for _, name in STRUCTS])
def test_every_argument_of_the_document_is_an_argument_of_the_tool(source, struct):
    ours = TOOLS[tool_of(struct)]
    for one in go_source.structs(source.text)[struct]:
        mine = ours["properties"][one.name]
        kinds = mine.get("type") or [kind["type"] for kind in mine["anyOf"]]
        wide = {"number", "integer"} if one.type == "integer" else {one.type}
        assert wide & set([kinds] if isinstance(kinds, str) else kinds), one
    required = {one.name for one in go_source.structs(source.text)[struct] if one.required}
    # The documents require the id in one place and take it from the run in another.
    assert set(ours.get("required", ())) <= required


@pytest.mark.parametrize("source", run_as("fields of a tool"), ids=lambda one: one.id)
def test_every_field_of_the_document_is_in_the_answer(source, answers):
    found = go_source.structs(source.text)
    for name, fields in found.items():
        if not name.endswith("Output"):
            continue
        answer = answers[tool_of(name)]
        for one in fields:
            if one.required:
                assert isinstance(answer[one.name], PYTHON[one.type]), one
    for name, entry in (("OutputChunk", "chunks"), ("FileEntry", "entries")):
        for one in found.get(name, ()):
            [tool] = {tool_of(other) for other in found if other.endswith("Output")}
            assert isinstance(answers[tool][entry][0][one.name], PYTHON[one.type])


# Of each field that the documents mark `omitempty`: an answer with it, and one without.
OPTIONAL = {
    ("SandboxRunOutput", "error"): ("refused run", "sandbox_run"),
    ("SandboxExecOutput", "exit_code"): ("sandbox_exec", "streamed exec"),
    ("SandboxExecOutput", "stdout"): ("sandbox_exec", "streamed exec"),
    ("SandboxExecOutput", "stderr"): ("failed exec", "streamed exec"),
    ("SandboxExecWaitOutput", "exit_code"): ("sandbox_exec_wait", "early exec_wait"),
    ("SandboxFsReadOutput", "contents"): ("sandbox_fs_read", "binary fs_read"),
    ("SandboxFsReadOutput", "contents_b64"): ("binary fs_read", "sandbox_fs_read"),
}


def test_every_optional_field_of_the_document_is_there_when_it_has_a_value(answers):
    fields = {
        (struct, one.name): one
        for source in run_as("fields of a tool")
        for struct, listed in go_source.structs(source.text).items()
        for one in listed
        if struct.endswith("Output") and not one.required
    }
    assert set(fields) == set(OPTIONAL)
    for (struct, name), (with_it, without) in OPTIONAL.items():
        value = answers[with_it][name]
        assert isinstance(value, PYTHON[fields[struct, name].type]), (struct, name)
        assert value or name == "exit_code"
        assert answers[without].get(name) in (None, ""), (struct, name)


@pytest.mark.parametrize("source", run_as("fields of limits"), ids=lambda one: one.id)
def test_every_limit_of_the_backend_has_a_name_in_the_frontmatter(source):
    body = re.search(r"type ResourceLimits struct \{\n(.*?)\n\}", source.text, re.DOTALL)
    assert body is not None
    names = re.findall(r"^\s+([A-Z]\w+)", body[1], re.MULTILINE)
    plain = [re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=CPU)(?=[A-Z])", "_", one).lower() for one in names]
    assert plain == ["cpu_millicores", "memory_mb", "timeout_seconds", "workspace_mb"]
    assert set(plain) <= set(LIMIT_FIELDS)


@pytest.mark.parametrize("source", run_as("names of tools"), ids=lambda one: one.id)
def test_a_mode_has_the_tools_of_the_document(source, desk):
    modes = re.split(r'case "(\w+)":', source.text)[1:]
    for mode, text in zip(modes[::2], modes[1::2], strict=True):
        made = [tool_of(f"Sandbox{name}") for name in re.findall(r"Create(\w+)Tool\(", text)]
        names = {"sandbox_run" if name == "sandbox_compute" else name for name in made}
        ours = {one.name for one in desk.toolbox.specs(AgentSandbox(mode=cast("Mode", mode)))}
        assert names <= ours
        assert mode == "code" or ours == {"sandbox_run"}


@pytest.mark.parametrize("source", run_as("answer of sandbox_run"), ids=lambda one: one.id)
def test_the_answer_of_sandbox_run_has_the_shape_of_the_example(source, answers):
    same_shape(json.loads(source.text), answers["sandbox_run"])


CALLS = run_as("tool call")
# What has to be there before the call.
BEFORE = {
    "sandbox_fs_read": "main.py",
    "sandbox_fs_list": "data/x",
    "sandbox_fs_delete": "temp.txt",
}


@pytest.mark.parametrize("source", CALLS, ids=lambda one: one.id)
async def test_a_call_of_the_design_is_answered_as_shown(source, desk):
    shown = json.loads(re.sub(r"\s+//.*", "", source.text))
    tool = shown["name"].removeprefix("sandbox_")
    if shown["name"] in BEFORE:
        await desk.call("fs_write", path=BEFORE[shown["name"]], content="print('Hello, World!')")
    answer = await desk.call(tool, **shown["input"])
    assert "error_code" not in answer
    same_shape(shown["output"], answer)
    for name in ("path", "content"):
        if name in shown["output"]:
            # /work is a link to /workspace, and answers name the directory.
            assert answer[name] == shown["output"][name].replace("/work/", "/workspace/")
    if tool == "exec":
        # The machine has no network for apt; the command itself is run.
        assert answer["exit_code"] != 0
    if tool == "fs_list":
        assert {"name": "data", "type": "directory"}.items() <= answer["entries"][0].items()


def same_shape(shown: Any, answer: Any) -> None:
    if isinstance(shown, dict):
        for name, value in shown.items():
            assert name in answer, name
            # It is `true` in the design and the path in the requirements; ours is the path.
            if name != "deleted":
                same_shape(value, answer[name])
    elif isinstance(shown, list):
        same_shape(shown[0], answer[0])
    else:
        number = isinstance(shown, int) and not isinstance(shown, bool)
        assert isinstance(answer, int | float if number else type(shown))
