"""The code blocks of the source documents, as data.

`blocks/*.yaml` has every code block as written, with a verdict.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VERDICTS = {
    "runs": "It runs as written. A changed port and a scripted model are the only edits.",
    "no code": "It is a drawing, a message or a list of files.",
    "other program": "It is the code of another program. A test shows the same behaviour here.",
    "replaced": "Something else does the same.",
    "later": "What it needs is not built yet.",
}
RUN_BY = {
    "agent": "test_agent_blocks.py",
    "workflow": "test_agent_blocks.py",
    "fields of the frontmatter": "test_agent_blocks.py",
    "session keys": "test_agent_blocks.py",
    "schema of a tool": "test_tool_blocks.py",
    "fields of a tool": "test_tool_blocks.py",
    "fields of limits": "test_tool_blocks.py",
    "names of tools": "test_tool_blocks.py",
    "answer of sandbox_run": "test_tool_blocks.py",
    "tool call": "test_tool_blocks.py",
    "environment": "test_settings_blocks.py",
    "settings": "test_settings_blocks.py",
    "endpoints": "test_http_blocks.py",
    "runner requests over HTTP": "test_http_blocks.py",
    "runner answers over HTTP": "test_http_blocks.py",
    "requests of curl": "test_shell_blocks.py",
    "program": "test_shell_blocks.py",
    "Dockerfile": "../../plugins/build/tests/test_project_dockerfiles.py",
}
"""How a block is run, and the tests that do it."""


@dataclass(frozen=True, slots=True)
class Block:
    document: str
    number: int
    section: str
    language: str
    text: str
    verdict: str
    kind: str | None
    """How it is run; None if it is not."""
    reason: str | None
    test: str | None

    @property
    def id(self) -> str:
        return f"{self.document}-{self.number}"


@dataclass(frozen=True, slots=True)
class Document:
    id: str
    title: str
    blocks: tuple[Block, ...]


@cache
def documents() -> tuple[Document, ...]:
    return tuple(_read(path) for path in sorted((HERE / "blocks").glob("*.yaml")))


def _read(path: Path) -> Document:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    blocks = tuple(
        Block(
            document=found["document"],
            number=one["number"],
            section=one["section"],
            language=one["language"],
            text=one["text"],
            verdict=one["verdict"],
            kind=one.get("as"),
            reason=one.get("reason"),
            test=one.get("test"),
        )
        for one in found["blocks"]
    )
    return Document(found["document"], found["title"], blocks)


def block(id: str) -> Block:
    return next(one for one in all_blocks() if one.id == id)


def all_blocks() -> list[Block]:
    return [one for document in documents() for one in document.blocks]


def run_as(*kinds: str) -> list[Block]:
    return [one for one in all_blocks() if one.kind in kinds]


def exists(test: str) -> bool:
    """Return whether there is such a directory, file, or `file::function` of tests."""
    path, _, function = test.partition("::")
    place = ROOT / path
    if not function:
        return place.exists()
    name = re.escape(function.partition("[")[0])
    return place.is_file() and bool(re.search(rf"^(async )?def {name}\(", place.read_text(), re.M))


def is_long(test: str) -> bool:
    """Return whether all of `file::function` is left to `make test-long`."""
    path, _, function = test.partition("::")
    functions, whole = _marked_long(ROOT / path)
    return whole or function.partition("[")[0] in functions


@cache
def _marked_long(path: Path) -> tuple[frozenset[str], bool]:
    """Return the functions that are marked `long`, and whether the whole file is."""
    marks: set[str] = set()
    functions = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and _names_long(node.value):
            marks |= {one.id for one in node.targets if isinstance(one, ast.Name)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
            _names_long(one) or ast.unparse(one) in marks for one in node.decorator_list
        ):
            functions.add(node.name)
    return frozenset(functions), "pytestmark" in marks


def _names_long(mark: ast.expr) -> bool:
    """Return whether it is the mark, its call, or a list with one of them.

    A parameter that is marked leaves the others.
    """
    if isinstance(mark, ast.List | ast.Tuple):
        return any(_names_long(one) for one in mark.elts)
    called = mark.func if isinstance(mark, ast.Call) else mark
    return ast.unparse(called) == "pytest.mark.long"
