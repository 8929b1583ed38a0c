"""The promises of SPECIFICATION.md and the tests that are marked with them. Reads, never imports.

A promise is a list item `- **P12** text` below a heading. A Python test is marked with
`@pytest.mark.promise("P12")`, a module or class with `pytestmark`. A Rust test has the comment
`// promise: P12` above it; such a comment elsewhere in a Rust file, or `# promise: P12` in a
benchmark, marks the whole file.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.repo import tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SPECIFICATION = tree.ROOT / "SPECIFICATION.md"
_LINE = re.compile(r"^(?:## (?P<group>.+)|- \*\*(?P<id>P\d+)\*\* (?P<text>.+))$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*(?://|#) promise: (?P<ids>.*)$")
_RUST_FN = re.compile(r"^\s*(?:pub )?(?:async )?fn (\w+)")


@dataclass(frozen=True, slots=True)
class Promise:
    id: str
    group: str
    text: str


@dataclass(frozen=True, slots=True)
class Marker:
    """The promises of one test, or of a whole file when `test` is empty."""

    path: str
    test: str
    ids: tuple[str, ...]


def read(specification: str) -> list[Promise]:
    """Return the promises in the order of the document."""
    promises = []
    group = ""
    for match in _LINE.finditer(specification):
        if match["group"]:
            group = match["group"]
        else:
            promises.append(Promise(match["id"], group, match["text"]))
    return promises


def markers(paths: Iterable[Path], root: Path) -> list[Marker]:
    """Return the markers of the Python tests, Rust tests and benchmarks among these files."""
    found: list[Marker] = []
    for path in sorted(paths):
        name = path.relative_to(root).as_posix()
        if path.suffix == ".rs":
            found += _in_rust(name, path.read_text())
        elif name.startswith("benchmarks/") and path.suffix == ".py":
            found += _in_comments(name, path.read_text())
        elif path.suffix == ".py" and path.name.startswith("test_"):
            found += _in_python(name, path.read_text())
    return found


def _in_python(name: str, source: str) -> Iterator[Marker]:
    if "promise" in source:
        yield from _in_body(name, "", ast.parse(source).body)


def _in_body(name: str, prefix: str, body: list[ast.stmt]) -> Iterator[Marker]:
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                listed = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
                yield from _of(name, prefix.removesuffix("::"), listed)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _of(name, prefix + node.name, node.decorator_list)
            case ast.ClassDef():
                yield from _of(name, prefix + node.name, node.decorator_list)
                yield from _in_body(name, f"{prefix}{node.name}::", node.body)
            case _:
                pass


def _of(name: str, test: str, expressions: list[ast.expr]) -> Iterator[Marker]:
    for expression in expressions:
        if isinstance(expression, ast.Call) and ast.unparse(expression.func) == (
            "pytest.mark.promise"
        ):
            yield Marker(name, test, tuple(_id(argument) for argument in expression.args))


def _id(argument: ast.expr) -> str:
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    return ast.unparse(argument)


def _in_rust(name: str, source: str) -> Iterator[Marker]:
    lines = source.splitlines()
    for number, line in enumerate(lines):
        if match := _COMMENT.match(line):
            yield Marker(name, _function_below(lines[number + 1 :]), _listed(match["ids"]))


def _function_below(lines: list[str]) -> str:
    """Return the function that attributes and comments lead to, or an empty string."""
    for line in lines:
        if match := _RUST_FN.match(line):
            return match[1]
        if not line.strip().startswith(("#[", "//")):
            return ""
    return ""


def _in_comments(name: str, source: str) -> Iterator[Marker]:
    for line in source.splitlines():
        if match := _COMMENT.match(line):
            yield Marker(name, "", _listed(match["ids"]))


def _listed(ids: str) -> tuple[str, ...]:
    return tuple(part for part in re.split(r"[,\s]+", ids) if part)


def problems(promises: list[Promise], marked: list[Marker]) -> list[str]:
    """Return what is wrong between the promises and the markers; empty when they agree."""
    ids = [promise.id for promise in promises]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    complaints = [f"{name} is used for two promises" for name in twice]
    covered = {name for marker in marked for name in marker.ids}
    complaints += [f"{name} has no test" for name in ids if name not in covered]
    for marker in marked:
        place = "::".join(filter(None, (marker.path, marker.test)))
        if not marker.ids:
            complaints.append(f"{place}: the marker names no promise")
        complaints += [
            f"{place}: there is no promise {name}" for name in marker.ids if name not in ids
        ]
    return complaints


def table(promises: list[Promise], marked: list[Marker]) -> str:
    """Return the generated part of docs/reference/promises.md: each promise with its tests."""
    lines = []
    group = ""
    for promise in promises:
        if promise.group != group:
            group = promise.group
            lines.append(f"## {group}\n")
        lines.append(f"### {promise.id}\n\n{promise.text}\n")
        files: dict[str, list[str]] = {}
        for marker in marked:
            if promise.id in marker.ids:
                files.setdefault(marker.path, []).append(marker.test)
        for path, tests in files.items():
            # A marked file says it all; tests of it that are marked as well add nothing.
            names = "" if "" in tests else ": " + ", ".join(f"`{test}`" for test in tests)
            lines.append(f"- `{path}`{names}")
        lines.append("")
    return "\n".join(lines)
