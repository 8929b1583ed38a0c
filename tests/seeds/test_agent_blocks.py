"""The agents, the workflow and the session keys of the source documents, run as written.

The model is scripted: it calls the tools that the document gives to an agent of that mode. A Debian
of the tests has the names of the documents' images, so that nothing is fetched. Of the packages,
`yaml` is the real one without its compiled part, and `pandas` is a module of that name.
"""

from __future__ import annotations

import asyncio
import json
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from sandkasten.model.runs.session_key import SessionKey, parse_session_key
from sandkasten_agents.definitions.prompt_file import parse_agent
from sandkasten_agents.definitions.sandbox_field import LIMIT_FIELDS, NETWORK_FIELDS, SANDBOX_FIELDS
from tests import imagekit
from tests.agents.agency import house
from tests.models.server import Answer, Asked, Call
from tests.packages import wheels
from tests.seeds import go_source
from tests.seeds.documents import Block, block, run_as

CODE = """
import importlib.util, os
found = [name for name in ("pandas", "yaml") if importlib.util.find_spec(name)]
if "yaml" in found:
    import yaml
    found = yaml.safe_load(yaml.safe_dump(found))
print("computed", 6 * 7, os.path.exists("/work"), *found)
"""
FENCE = "---\n"
EMPTY = "the template is empty: the model receives only the task"
LOG = "INFO a\nERROR b\nERROR b\nERROR c\n"
PYTHON, LINUX = "python:3.11-slim", "ubuntu:22.04"


@cache
def prompts() -> dict[str, str]:
    """Return the text of each agent; a block that shows alternatives has several."""
    return {
        f"{one.id}-{number}": text
        for one in run_as("agent")
        for number, text in enumerate(_alternatives(one), 1)
    }


def _alternatives(shown: Block) -> list[str]:
    """Return a whole file unchanged; fragments get the lines that mark a frontmatter."""
    if shown.text.startswith(FENCE):
        return [shown.text]
    parts = re.split(r"^(?=sandbox:)", shown.text, flags=re.MULTILINE)
    return [f"{FENCE}{part}{FENCE}" for part in parts if part.startswith("sandbox:")]


_images: list[str] = []


def scripted(asked: Asked) -> Answer:
    """Use the tools as an agent of either mode would, then answer with the last result.

    The image that an answer names is noted.
    """
    if asked.turn and "image" in asked.last:
        _images.append(asked.last["image"])
    names = [one["function"]["name"] for one in asked.body.get("tools", [])]
    turns = _computes(asked) if names == ["sandbox_run"] else _codes()
    if asked.turn < len(turns):
        return Answer(calls=[turns[asked.turn]])
    return Answer(str(asked.last["stdout"]))


def _computes(asked: Asked) -> list[Call]:
    program = re.search(r"```python\n(.*?)```", asked.system, re.DOTALL)
    return [Call("sandbox_run", {"code": program[1] if program else CODE})]


def _codes() -> list[Call]:
    broken = CODE.replace("6 * 7", "6 *")
    return [
        Call("sandbox_open"),
        Call("sandbox_fs_write", {"path": "main.py", "contents": broken}),
        Call("sandbox_exec", {"cmd": ["python3", "main.py"]}),
        Call("sandbox_fs_write", {"path": "main.py", "contents": CODE}),
        Call("sandbox_exec", {"cmd": ["python3", "main.py"]}),
    ]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def shown(tmp_path_factory, anyio_backend):
    """A service with all agents of the documents."""
    place = tmp_path_factory.mktemp("seeds")
    wheels.wheel(place / "wheels", "pandas")
    source = {
        f"yaml/{one.name}": one.read_text() for one in Path(yaml.__file__).parent.glob("*.py")
    }
    wheels.wheel(place / "wheels", "pyyaml", yaml.__version__, files=source)
    debian = imagekit.debian_tar()
    stored = ((PYTHON, debian), (LINUX, debian))
    await asyncio.to_thread(imagekit.store_with, place / "data" / "images", *stored)
    async with house(
        place,
        files={f"agents/{name}.prompt": text for name, text in prompts().items()},
        script=scripted,
        SANDKASTEN_MODELS_DEFAULT="scripted",
        SANDKASTEN_PACKAGES_FIND_LINKS=str(place / "wheels"),
    ) as one:
        yield one


@pytest.mark.parametrize("name", prompts())
async def test_an_agent_of_the_documents_runs(shown, name):
    text = prompts()[name]
    agent = parse_agent(text, name)
    has_a_task = not text.endswith(FENCE)
    assert agent.warnings == (() if has_a_task else (EMPTY,))
    _images.clear()
    row = await shown.agent(agent.name, "Compute it", variables={"log_data": LOG})
    assert (row.status, row.error) == ("completed", None)
    if "log_data" in text:
        assert row.output == {
            "total_lines": 4,
            "error_count": 3,
            "top_errors": [{"message": "ERROR b", "count": 2}, {"message": "ERROR c", "count": 1}],
        }
    else:
        packages = " pandas yaml" if "pip_packages" in text else ""
        assert row.output == f"computed 42 True{packages}\n"
    assert set(_images) == {LINUX if "runtime: linux" in text else PYTHON}
    assert await shown.sandboxes() == []


@pytest.mark.parametrize("flow", run_as("workflow"), ids=lambda one: one.id)
async def test_the_workflow_of_the_documents_runs_with_one_sandbox(tmp_path, flow):
    """The tests fail once, the loop goes back to the repair, and all files are still there."""
    said = dict(re.findall(r"agent: (\S+)\n\s+# (.+)", flow.text))
    assert set(said) == {"code-analyzer", "code-fixer", "test-runner"}
    asked: list[str] = []

    def plays(request: Asked) -> Answer:
        name = request.system.split()[-1]
        commands = {
            "code-analyzer": "echo broken > analysis.txt",
            "code-fixer": "cat analysis.txt; echo fixed >> fixes.txt",
            "test-runner": "cat analysis.txt; wc -l < fixes.txt",
        }
        if request.turn == 0:
            asked.append(name)
            return Answer(calls=[Call("sandbox_exec", {"command": commands[name]})])
        passed = request.last["stdout"].strip().endswith("2")
        return Answer(json.dumps({"all_passed": passed}))

    files = {
        f"agents/{name}.prompt": f"---\nmetadata: {{name: {name}}}\n"
        "sandbox: {mode: code}\noutput: {format: json}\n---\n"
        f"You are {name}\n"
        for name in said
    }
    files["workflows/shown.yaml"] = flow.text
    async with house(
        tmp_path,
        files=files,
        script=plays,
        backend="unisolated",
        SANDKASTEN_MODELS_DEFAULT="scripted",
    ) as one:
        row = await one.flow("code-review-and-fix")
        assert (row.status, row.error) == ("completed", None)
        assert asked == ["code-analyzer", "code-fixer", "test-runner", "code-fixer", "test-runner"]
        assert await one.sandboxes() == []


@pytest.mark.parametrize("source", run_as("fields of the frontmatter"), ids=lambda one: one.id)
def test_every_field_of_the_frontmatter_is_known(source):
    known = {"SandboxLimits": LIMIT_FIELDS, "SandboxNetwork": NETWORK_FIELDS}
    found = go_source.structs(source.text)
    assert found
    for name, fields in found.items():
        assert fields
        assert {one.name for one in fields} - set(known.get(name, SANDBOX_FIELDS)) == set()


def test_the_session_key_of_the_requirements_has_the_same_parts():
    source = block("002-3").text
    parts = re.findall(r"^    (\w+)\s+string //", source, re.MULTILINE)
    assert parts == ["Namespace", "ID", "Key"]
    assert re.findall(r'Namespace: "(\w+)"', source) == ["workflow", "agent"]
    for namespace in ("workflow", "agent"):
        key = SessionKey(namespace, "run_123")
        assert str(key) == f"{namespace}:run_123:default"
        assert parse_session_key(str(key)) == key


def test_the_session_keys_of_the_design_are_understood():
    written = re.findall(r'"((?:workflow|agent)_\S+)"', block("003-11").text)
    assert [parse_session_key(one) for one in written] == [
        SessionKey("workflow", "wf_abc123"),
        SessionKey("agent", "run_456"),
    ]
