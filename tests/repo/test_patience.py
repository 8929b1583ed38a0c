"""No test asserts how long something took."""

from __future__ import annotations

import ast
import textwrap
from typing import TYPE_CHECKING

from tests.repo import tree

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLOCKS = {"monotonic", "perf_counter", "time", "monotonic_ns", "perf_counter_ns", "time_ns"}
_SAMPLE = """\
    import time
    from time import monotonic

    def test_both_at_once():
        began = time.monotonic()
        assert time.monotonic() - began < 2

    async def test_a_variable_and_two_bounds():
        began = time.perf_counter()
        took = time.perf_counter() - began
        assert 1 <= took < 2

    def test_the_other_way_round():
        began = monotonic()
        done = monotonic()
        assert 0.5 * 4 >= round(done - began)

    def test_the_longest_of_many():
        waits = []
        for _ in range(3):
            began = time.time()
            waits.append(time.time() - began)
        assert max(waits) < 1
"""
_INNOCENT = """\
    import time
    from tests.patience import FAR_TOO_LATE_S

    def test_far_too_late():
        began = time.monotonic()
        assert time.monotonic() - began < FAR_TOO_LATE_S

    def test_not_before():
        began = time.monotonic()
        took = time.monotonic() - began
        assert took >= 1
        assert 1 < took

    def test_a_wait_that_gives_up():
        ends = time.monotonic() + 40
        while time.monotonic() < ends:
            pass

    def test_how_many():
        waits = []
        waits.append(time.monotonic() - time.monotonic())
        assert len(waits) < 2

    def test_another_function_may_call_a_thing_the_same():
        took = 3
        assert took < 5
"""


def _impatient(source: str) -> list[int]:
    """Return the lines that compare the time between two clock readings with a number."""
    found: set[int] = set()
    if not any(f"{name}(" in source for name in _CLOCKS):
        return []
    for scope in _scopes(ast.parse(source)):
        read, spans = _names(scope)
        for node in ast.walk(scope):
            if isinstance(node, ast.Compare) and _is_bounded(node, read, spans):
                found.add(node.lineno)
    return sorted(found)


def _scopes(node: ast.AST) -> Iterator[ast.AST]:
    """Return the outermost functions: names are shared within one of them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        else:
            yield from _scopes(child)


def _names(scope: ast.AST) -> tuple[set[str], set[str]]:
    """Return the names that hold a clock reading, and those that hold a duration."""
    read: set[str] = set()
    spans: set[str] = set()
    assigned = list(_assigned(scope))
    while True:
        before = len(read) + len(spans)
        for name, value in assigned:
            if _is_reading(value, read):
                read.add(name)
            elif _holds_span(value, read, spans):
                spans.add(name)
        if len(read) + len(spans) == before:
            return read, spans


def _assigned(scope: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(scope):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield from ((ast.unparse(target), value) for target in targets)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield ast.unparse(target), value
            case ast.NamedExpr(target=target, value=value):
                yield target.id, value
            case ast.Call(func=ast.Attribute(value=many, attr="append"), args=[value]):
                yield ast.unparse(many), value


def _is_reading(node: ast.expr, read: set[str]) -> bool:
    match node:
        case (
            ast.Call(func=ast.Attribute(attr=name), args=[])
            | ast.Call(func=ast.Name(id=name), args=[])
        ):
            return name in _CLOCKS
        case ast.Name() | ast.Attribute():
            return ast.unparse(node) in read
    return False


def _holds_span(node: ast.AST, read: set[str], spans: set[str]) -> bool:
    """Also the maximum of several, and a rounded one; their count is not a duration."""
    match node:
        case ast.BinOp(left=left, op=ast.Sub(), right=right) if _is_reading(
            left, read
        ) and _is_reading(right, read):
            return True
        case ast.Name() | ast.Attribute() if ast.unparse(node) in spans:
            return True
        case ast.Call(func=ast.Name(id="len")):
            return False
    return any(_holds_span(child, read, spans) for child in ast.iter_child_nodes(node))


def _is_bounded(node: ast.Compare, read: set[str], spans: set[str]) -> bool:
    sides = [node.left, *node.comparators]
    for left, relation, right in zip(sides, node.ops, sides[1:], strict=False):
        match relation:
            case ast.Lt() | ast.LtE():
                less, more = left, right
            case ast.Gt() | ast.GtE():
                less, more = right, left
            case _:
                continue
        if _is_number(more) and _holds_span(less, read, spans):
            return True
    return False


def _is_number(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=int() | float()):
            return True
        case ast.UnaryOp(operand=operand):
            return _is_number(operand)
        case ast.BinOp(left=left, right=right):
            return _is_number(left) and _is_number(right)
    return False


def test_a_test_that_asserts_a_duration_is_reported():
    assert _impatient(textwrap.dedent(_SAMPLE)) == [6, 11, 16, 23]


def test_a_test_that_waits_for_an_event_is_not_reported():
    assert _impatient(textwrap.dedent(_INNOCENT)) == []


def test_no_test_asserts_a_duration():
    found = [
        f"{path.relative_to(tree.ROOT)}:{line}"
        for path in tree.files()
        if path.suffix == ".py" and "tests" in path.relative_to(tree.ROOT).parts
        for line in _impatient(path.read_text())
    ]
    hint = "compare with FAR_TOO_LATE_S of tests/patience.py, or ask for the order of events"
    assert not found, "\n".join((hint, *found))
