"""Reads SPECIFICATION.md: each promise, and what is said to hold it.

A promise is a list item `- **P12** text (held by: path::name, path)`, or one that says
`not yet held`. A name is looked up in the syntax tree of its file, so a renamed test is noticed.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_ITEM = re.compile(
    r"^\s*- \*\*(P\d+[a-z]?)\*\*(.*?)(?=^\s*- |^\s*$|^#|\Z)", re.MULTILINE | re.DOTALL
)
_HELD = re.compile(r"\(held by:\s*([^)]*)\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Promise:
    name: str
    text: str
    holders: tuple[str, ...]
    not_yet: bool


def read(specification: str) -> list[Promise]:
    found = []
    for name, text in _ITEM.findall(specification):
        holders = [
            holder.strip(" `\n")
            for group in _HELD.findall(text)
            for holder in re.split(r"[,\s]+", group)
            if holder.strip(" `\n")
        ]
        found.append(Promise(name, text.strip(), tuple(holders), "not yet held" in text))
    return found


def trouble(promise: Promise, root: Path) -> list[str]:
    """Why this promise is not held by what it names; empty when it is."""
    if promise.not_yet and not promise.holders:
        return []
    if not promise.holders:
        return [f"{promise.name} names nothing that holds it and does not say: not yet held"]
    return [
        f"{promise.name}: {complaint}"
        for holder in promise.holders
        if (complaint := _missing(holder, root))
    ]


def _missing(holder: str, root: Path) -> str:
    path, _, name = holder.partition("::")
    file = root / path
    if not file.exists():
        return f"{path} does not exist"
    if not name:
        return ""
    wanted = name.partition("[")[0]
    if file.suffix == ".rs":
        known = set(re.findall(r"\bfn (\w+)", file.read_text()))
        return "" if wanted.split("::")[-1] in known else f"{path} has no test {name}"
    return "" if wanted in _functions(ast.parse(file.read_text())) else f"{path} has no {name}"


def _functions(parsed: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in parsed.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(node.name)
            case ast.ClassDef():
                names.add(node.name)
                names |= {
                    f"{node.name}::{inner.name}"
                    for inner in node.body
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
                }
    return names
