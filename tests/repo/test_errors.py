"""Every error class has one row in spec/errors.json, and every row a class."""

from __future__ import annotations

import inspect
import json
import re

import pytest

from sandkasten import errors
from tests.repo import tree

pytestmark = pytest.mark.promise("P36")

TABLE = json.loads((tree.ROOT / "spec" / "errors.json").read_text())


def _classes() -> dict[str, type[errors.SandkastenError]]:
    return {
        name: cls
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, errors.SandkastenError)
    }


def test_the_table_and_the_classes_are_the_same():
    rows = {row["class"]: (row["parent"], row["code"], row["retryable"]) for row in TABLE["errors"]}
    assert rows == {
        name: (cls.__mro__[1].__name__, cls.code, cls.retryable) for name, cls in _classes().items()
    }


def test_every_row_is_complete():
    for row in TABLE["errors"]:
        assert set(row) == {"class", "parent", "code", "status", "retryable", "meaning", "hint"}
        assert 400 <= row["status"] <= 599
        assert re.fullmatch(r"[A-Z][A-Z_]+", row["code"])
        assert row["meaning"], row["class"]
        assert row["hint"], row["class"]


def test_rows_with_one_code_answer_with_one_status():
    statuses: dict[str, set[int]] = {}
    for row in TABLE["errors"]:
        statuses.setdefault(row["code"], set()).add(row["status"])
    assert {code: seen for code, seen in statuses.items() if len(seen) != 1} == {}


def test_the_tree_drawn_in_the_docstring_names_every_class():
    drawn = set(re.findall(r"^[│├└─ ]*([A-Z][A-Za-z]+)", errors.__doc__ or "", re.MULTILINE))
    assert {name for name in _classes() if name not in drawn} == set()
