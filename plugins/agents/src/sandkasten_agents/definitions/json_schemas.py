"""JSON Schemas of agents and workflows: checked when read, then used to validate values.

Nothing is fetched: a `$ref` that points outside its schema is rejected. Work is bounded for any
schema and value: size and depth of both, and the number of rules evaluated, weighted by the data
that each rule reads. A `pattern` is matched by an engine with time linear in the length of the
string and the size of the compiled pattern; both are counted. Look-around and back references,
which that engine lacks, are rejected. `format` is an annotation and is not checked.

A bad schema raises InvalidRequest, or the class that the caller names. A value that does not match
is not an error but a list of short strings, each with a JSON pointer.
"""

from __future__ import annotations

import json
import time
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from jsonschema import exceptions, validators
from jsonschema.validators import Draft202012Validator
from pydantic_core import SchemaError, SchemaValidator
from referencing import Registry
from referencing.exceptions import Unresolvable

from sandkasten.errors import InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sandkasten.errors import RequestError

MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_VALUE_BYTES: Final = 4 * 1024 * 1024
MAX_DEPTH: Final = 64
MAX_RULES: Final = 200_000
_RULE_S: Final = 5e-6
MAX_PROBLEMS: Final = 10

MAX_PATTERNS_S: Final = 0.25
r"""CPU time limit for compiling the patterns of one schema. `\w{50}` takes 10 ms."""

_PATTERN_COST: Final = 50
# Names and values that a rule visits cost less than a rule each.
_SHARE: Final = 4
# Measured: the worst case took 10 rules for each character and second of compile time.
_MATCH_COST: Final = 20.0
_left: ContextVar[int] = ContextVar("rules_left", default=MAX_RULES)


class _BudgetExceeded(Exception):
    pass


def checked_schema(
    schema: object, *, what: str, error: type[RequestError] = InvalidRequest
) -> dict[str, Any]:
    """Return the schema if it is valid and supported."""
    if not isinstance(schema, dict):
        raise error(f"{what} must be a mapping", hint="write a JSON Schema, or Picoschema")
    try:
        text = _canonical(schema)
    except (ValueError, TypeError, RecursionError) as exc:
        raise error(f"{what} is not valid JSON", hint="write a JSON Schema") from exc
    if len(text) > MAX_SCHEMA_BYTES:
        raise error(f"{what} is larger than {MAX_SCHEMA_BYTES} bytes", hint="write a smaller one")
    try:
        _validator(text)
    except (exceptions.SchemaError, ValueError, RecursionError) as exc:
        problem = exc.message if isinstance(exc, exceptions.SchemaError) else str(exc)
        raise error(
            f"{what} is not a JSON Schema: {problem[:200]}",
            hint="see json-schema.org; a property looks like `name: {type: string}`",
        ) from exc
    return schema


def check(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """Return at most ten problems of the value, such as `#/items/0: must be of type integer`.

    `schema` must have passed `checked_schema`; any other raises InvalidRequest.
    """
    checked_schema(dict(schema), what="the schema")
    try:
        size = len(json.dumps(value, allow_nan=False, ensure_ascii=False))
    except (ValueError, TypeError, RecursionError):
        return ["#: is not valid JSON data"]
    if size > MAX_VALUE_BYTES or is_deeper_than(value, MAX_DEPTH):
        return [f"#: is larger than {MAX_VALUE_BYTES} characters or {MAX_DEPTH} levels"]
    token = _left.set(MAX_RULES)
    try:
        problems: list[str] = []
        for problem in _validator(_canonical(schema)).iter_errors(value):
            problems.append(_describe(problem))
            if len(problems) == MAX_PROBLEMS:
                break
        return problems
    except (_BudgetExceeded, RecursionError):
        return [f"#: requires more than {MAX_RULES} comparisons with its schema"]
    except (Unresolvable, ArithmeticError) as exc:
        return [f"#: cannot be compared with its schema: {str(exc)[:200]}"]
    finally:
        _left.reset(token)


def _canonical(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, allow_nan=False, sort_keys=True, ensure_ascii=False)


@lru_cache(maxsize=64)
def _validator(text: str) -> Any:
    schema = json.loads(text)
    if is_deeper_than(schema, MAX_DEPTH):
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    _check_rules(schema, schema, _PatternBudget())
    # No format checker: it would match patterns with the library's own engine.
    Draft202012Validator.check_schema(schema, format_checker=None)  # type: ignore[arg-type]
    return _Bounded(schema, registry=_NOTHING)


@dataclass(slots=True)
class _PatternBudget:
    """Compile time that the patterns of one schema have used so far."""

    seconds: float = 0.0

    def take(self, pattern: str) -> None:
        self.seconds += _pattern_of(pattern).seconds
        if self.seconds > MAX_PATTERNS_S:
            raise ValueError(f"its patterns are too complex at {shown(pattern)}")


def _check_rules(schema: Any, root: Any, making: _PatternBudget) -> None:
    """Check that references resolve inside the schema and that all patterns are supported."""
    if isinstance(schema, list):
        for item in schema:
            _check_rules(item, root, making)
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in ("$ref", "$dynamicRef") and isinstance(value, str):
            _check_reference(value, root)
        if key in ("unevaluatedProperties", "unevaluatedItems") and value is not True:
            # For each of these the library traverses the whole schema again, uncounted.
            raise ValueError(f"{key} is not supported")
        if key == "pattern" and isinstance(value, str):
            making.take(value)
        if key == "patternProperties" and isinstance(value, dict):
            for pattern in value:
                making.take(pattern)
        _check_rules(value, root, making)


def _check_reference(reference: str, root: Any) -> None:
    if not reference.startswith("#"):
        raise ValueError(f"the reference {shown(reference)} points outside the schema")
    if "$id" in root or not reference.startswith("#/"):
        return
    here = root
    for part in unquote(reference[2:]).split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(here, list) and name.isdecimal() and int(name) < len(here):
            here = here[int(name)]
        elif isinstance(here, dict) and name in here:
            here = here[name]
        else:
            raise ValueError(f"the reference {shown(reference)} does not resolve")


@dataclass(frozen=True, slots=True)
class _Pattern:
    engine: SchemaValidator
    seconds: float
    """CPU time of compilation, which grows with the size of the pattern."""


# Each compiled pattern may take several megabytes.
@lru_cache(maxsize=32)
def _pattern_of(pattern: str) -> _Pattern:
    began = time.thread_time()
    try:
        engine = SchemaValidator({"type": "str", "pattern": pattern})
    except (SchemaError, ValueError) as exc:
        raise ValueError(f"the pattern {shown(pattern)} cannot be used") from exc
    return _Pattern(engine, time.thread_time() - began)


def _matched(pattern: str, text: str) -> bool:
    misses = _pattern_of.cache_info().misses
    compiled = _pattern_of(pattern)
    if _pattern_of.cache_info().misses != misses:
        _take(int(compiled.seconds / _RULE_S))
    _take(_PATTERN_COST + int(_MATCH_COST * compiled.seconds * len(text)))
    return compiled.engine.isinstance_python(text)


def _take(rules: int) -> None:
    remaining = _left.get() - rules
    if remaining < 0:
        raise _BudgetExceeded
    _left.set(remaining)


def _breadth(value: Any) -> int:
    """Return the number of entries that a rule visits: properties, required, enum, …"""
    return len(value) // _SHARE if isinstance(value, dict | list) else 0


def _compared(rule: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    """Return the cost of `const` and `enum`, which compare complete values."""

    def comparing(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if isinstance(instance, dict | list):
            _take(count_values(value, _left.get() * _SHARE) // _SHARE)
        yield from rule(validator, value, instance, schema) or ()

    return comparing


def _counted(rule: Callable[..., Any], cost: int) -> Callable[..., Iterator[Any]]:
    def counting(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _take(cost + _breadth(value))
        yield from rule(validator, value, instance, schema) or ()

    return counting


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[Any]:
    if isinstance(instance, str) and not _matched(pattern, instance):
        yield exceptions.ValidationError("does not match the pattern")


def _pattern_properties(
    validator: Any, patterns: dict[str, Any], instance: Any, _: Any
) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    for pattern, inner in patterns.items():
        for key, value in instance.items():
            if _matched(pattern, key):
                yield from validator.descend(value, inner, path=key, schema_path=pattern)


def _additional(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Validate `additionalProperties`; the library's own rule would use its own pattern engine."""
    if not isinstance(instance, dict):
        return
    patterns = schema.get("patternProperties", {})
    for key, value in instance.items():
        _take(1)
        if key in schema.get("properties", {}):
            continue
        if any(_matched(pattern, key) for pattern in patterns):
            continue
        if allowed is False:
            yield exceptions.ValidationError(f"has the unknown property {shown(key)}")
        elif isinstance(allowed, dict):
            yield from validator.descend(value, allowed, path=key)


def _unique(_: Any, wanted: Any, instance: Any, __: Any) -> Iterator[Any]:
    """Validate `uniqueItems`; the library's own rule compares every pair."""
    if not wanted or not isinstance(instance, list):
        return
    _take(count_values(instance, _left.get() + 1))
    distinct = {json.dumps(_plain(item), sort_keys=True) for item in instance}
    if len(distinct) < len(instance):
        yield exceptions.ValidationError("has duplicate entries")


def _plain(value: Any) -> Any:
    """Normalize a value: 1 and 1.0 are the same number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


_RULES: Final[dict[str, Any]] = dict(Draft202012Validator.VALIDATORS)
_OWN: Final[dict[str, Callable[..., Any]]] = {
    "const": _compared(_RULES["const"]),
    "enum": _compared(_RULES["enum"]),
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "uniqueItems": _unique,
}
_Bounded: Final[Any] = validators.extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {
        name: _counted(_OWN.get(name, rule), 10 if "$" in name else 1)
        for name, rule in _RULES.items()
    },
)
# No retrieval function; the library's default would open URLs.
_NOTHING: Final[Registry[Any]] = Registry()


def count_values(value: Any, most: int) -> int:
    """Return the number of values in plain data, including itself, counted up to `most`."""
    here, count = [value], 1
    while here and count <= most:
        current = here.pop()
        if isinstance(current, dict | list):
            count += len(current)
            here.extend(current.values() if isinstance(current, dict) else current)
    return count


def is_deeper_than(value: Any, levels: int) -> bool:
    """Return whether plain data is nested more than `most` levels deep; not recursive."""
    here = [value]
    for _ in range(levels + 1):
        here = [
            inner
            for outer in here
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not here:
            return False
    return True


_TELLS: Final = frozenset({"required", "pattern", "additionalProperties", "uniqueItems"})


def _describe(problem: exceptions.ValidationError) -> str:
    """Return a short description of a problem without the value itself, which can be long."""
    pointer = "#" + "".join(
        "/" + str(part).replace("~", "~0").replace("/", "~1")[:80] for part in problem.absolute_path
    )
    rule, wanted = str(problem.validator), problem.validator_value
    if rule in _TELLS:
        text = problem.message
    elif rule == "type":
        types = wanted if isinstance(wanted, list) else [wanted]
        text = f"must be of type {' or '.join(map(str, types))}"
    elif rule == "enum":
        text = f"must be one of {json.dumps(wanted, ensure_ascii=False)}"
    else:
        text = f"violates {rule}: {json.dumps(wanted, ensure_ascii=False)}"
    return f"{pointer}: {text[:200]}"
