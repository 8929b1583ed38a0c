"""Tests assert the code and the details of an error. Its wording is not repeated in tests.

A test that repeats a message fails when the message becomes clearer, and passes for another error
with similar words. Write `raises(InvalidRequest) as error` and compare `error.value.details`; if
the details do not say which rule was broken, they are missing in the error.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections import Counter

from sandkasten import errors
from tests.repo import tree

# Exactly as many as there are. Lower a number when a test is rewritten; a number never rises.
RECORDED = {"match": 503, "comparison": 502}
_OWN = frozenset(
    name
    for name, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, errors.SandkastenError)
)
_WORDING = ("message", "hint")
_MAY_HAVE = re.compile(r"\bmatch=|\.(?:message|hint)\b|\[[\"'](?:message|hint)[\"']\]")
_SAMPLE = """\
    def test_a_pattern():
        with pytest.raises(InvalidRequest, match="must be a list"):
            run()
        with raises((Busy, errors.Conflict), match=WORDS):
            run()

    def test_a_message():
        assert error.value.message == "there is nothing"
        assert "give it once" in error.hint
        assert body["message"] != before and other["hint"].startswith("x") is True
"""
_INNOCENT = """\
    def test_a_code_and_details():
        with pytest.raises(InvalidRequest) as error:
            run()
        assert error.value.details["field"] == "message"
        assert error.code == "INVALID_REQUEST"

    def test_what_others_raise():
        with pytest.raises(ValueError, match="is there twice"):
            run()
        with pytest.warns(UserWarning, match="hint"):
            run()

    def test_a_message_that_does_not_belong_to_an_error():
        assert hint == message
        assert sent["messages"] == []
        return error.message
"""


def _wordings(source: str) -> Counter[str]:
    """Count the assertions about the wording of an error, by their kind."""
    count: Counter[str] = Counter()
    # Parsing every test takes seconds, and half of them have no such word.
    for node in ast.walk(ast.parse(source)) if _MAY_HAVE.search(source) else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("raises"):
            has_pattern = any(keyword.arg == "match" for keyword in node.keywords)
            kinds = set(re.findall(r"\w+", ast.unparse(node.args[0]))) if node.args else set()
            count["match"] += has_pattern and bool(kinds & _OWN)
        elif isinstance(node, ast.Compare):
            count["comparison"] += any(_is_wording(side) for side in (node.left, *node.comparators))
    return count


def _is_wording(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=name)):
            return name in _WORDING
    return False


def test_an_assertion_about_wording_is_counted():
    assert _wordings(textwrap.dedent(_SAMPLE)) == {"match": 2, "comparison": 3}


def test_an_assertion_about_codes_and_details_is_not_counted():
    assert _wordings(textwrap.dedent(_INNOCENT)).total() == 0


def test_assertions_about_wording_are_as_many_as_recorded():
    total: Counter[str] = Counter()
    for path in tree.files():
        if path.suffix == ".py" and {"tests", "contract"} & {*path.relative_to(tree.ROOT).parts}:
            total += _wordings(path.read_text())
    assert total == RECORDED, (
        "lower the number for rewritten tests; assert codes and details in new ones"
    )
