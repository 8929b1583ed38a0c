"""Expressions of workflows, in CEL: checked when a file is read, evaluated in a separate process.

An expression is a function of values and can reach nothing else. Its length, its input, its CPU
time, its memory and the length of its value are bounded. A failure is a `RunFailed` that names the
expression and, if something is missing, the path.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import struct
import sys
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandkasten.disk.child_process import ChildProcess, start_child
from sandkasten.errors import InternalError, RunFailed, RunLimitReached, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.optional_extras import install_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_CHARACTERS: Final = 4096
_FROM_OUTSIDE: Final = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT)
_EVALUATOR: Final = Path(__file__).with_name("evaluator.py")
# The readable part of a chain such as `steps.a.output["b c"].d[0]`, used to name a missing path.
_CHAIN: Final = re.compile(
    r"""(?<![\w.\])"'])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*|\[\d+\]|\["[^"]*"\])+"""
)
_LINK: Final = re.compile(r"""([A-Za-z_]\w*)|\[(\d+)\]|\["([^"]*)"\]""")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')
_BOUND: Final = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*([A-Za-z_]\w*)\s*,")


class _Died(Exception):
    """The process ended instead of answering."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True, slots=True)
class Bounds:
    cpu_s: float = 2.0
    """CPU time of one evaluation, so that other load on the machine does not count."""
    wall_s: float = 30.0
    """Only for a process that does not run at all; on a working machine `cpu_s` is reached
    first.
    """
    context_bytes: int = 4 * 1024 * 1024
    value_bytes: int = 1024 * 1024
    memory_bytes: int = 1024 * 1024 * 1024
    """Address space; most of it is reserved by the interpreter itself."""


def problem(expression: str) -> str:
    """Return why a string is not a valid expression; empty if it is valid."""
    if len(expression) > MOST_CHARACTERS:
        return f"is longer than {MOST_CHARACTERS} characters"
    if not expression.strip():
        return "is empty"
    try:
        _references(expression)
    except ValueError as exc:
        line = next((ln for ln in str(exc).splitlines() if "ERROR" in ln), str(exc))
        detail = line.partition("ERROR: <input>:")[2] or line
        return "cannot be read: " + detail[:160]
    return ""


def names(expression: str) -> frozenset[str]:
    """Return the top-level names it reads, without those that a macro binds."""
    bound = _BOUND.findall(_STRING.sub('""', expression))
    return frozenset(_references(expression)) - frozenset(bound)


@lru_cache(maxsize=1024)
def _references(expression: str) -> tuple[str, ...]:
    import cel  # The import takes half a second, so only users of workflows pay for it.

    return tuple(cel.compile(expression).variables())


def missing_path(expression: str, context: Mapping[str, Any]) -> str:
    """Return the shortest path in the expression that does not resolve; empty if all do."""
    for chain in _CHAIN.finditer(expression):
        value: Any = context
        walked = ""
        links = _LINK.findall(chain[0])
        if expression[chain.end() :].lstrip().startswith("("):
            links.pop()  # A function call.
        for name, index, key in links:
            link: str | int = int(index) if index else name or key
            shown = f"[{link}]" if index else f'["{key}"]' if key else name
            walked += shown if not walked or shown[0] == "[" else f".{shown}"
            if not isinstance(value, dict | list | None):
                break  # A method of a string or a number.
            if link not in (range(len(value)) if isinstance(value, list) else value or ()):
                return walked
            value = _inside(value, link)
    return ""


def _inside(value: Any, link: str | int) -> Any:
    return value[link]


@dataclass(slots=True)
class Expressions:
    """Evaluator with at most `processes` processes. Use it with `async with`, or call `close`."""

    bounds: Bounds = field(default_factory=Bounds)
    processes: int = 2
    _idle: list[ChildProcess] = field(default_factory=list)
    _room: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._room = asyncio.Semaphore(self.processes)

    async def __aenter__(self) -> Expressions:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().aclose()

    async def value(self, expression: str, context: Mapping[str, Any]) -> Any:
        return (await self.values([expression], context))[0]

    async def truth(self, expression: str, context: Mapping[str, Any]) -> bool:
        """Return a condition's value. Raise RunFailed when it is neither true nor false."""
        value = await self.value(expression, context)
        if isinstance(value, bool):
            return value
        raise RunFailed(
            f"the condition {_shown(expression)} is {_shown(json.dumps(value))}, not true or false",
            hint="compare it: `x == 1`, `size(x) > 0`, `has(x.y)`",
            expression=expression[:200],
        )

    async def values(self, expressions: Sequence[str], context: Mapping[str, Any]) -> list[Any]:
        """Evaluate all expressions and return their values in order.

        Raise RunFailed, or RunLimitReached when an expression used too much.
        """
        if not expressions:
            return []
        # In a thread: the first call imports a large library, and a context may have megabytes.
        request = await asyncio.to_thread(_request, expressions, context)
        if len(request) > self.bounds.context_bytes:
            raise RunLimitReached(
                f"the expression {_shown(expressions[0])} reads {len(request)} bytes, "
                f"and {self.bounds.context_bytes} are allowed",
                hint="reduce the output of the step before it",
            )
        async with self._room:
            answer = await self._asked(request, expressions)
        if "values" in answer:
            return list(answer["values"])
        raise _failure(answer, expressions, context)

    async def _asked(self, request: bytes, expressions: Sequence[str]) -> dict[str, Any]:
        used = self._idle.pop() if self._idle else None
        if used is not None:
            try:
                return await self._exchange(used, request, expressions)
            except _Died as died:
                if died.status not in _FROM_OUTSIDE:
                    raise self._unanswered(died, expressions) from died
                # The process was ended from outside, perhaps long ago: not the fault of this
                # expression.
        try:
            return await self._exchange(await self._spawn(), request, expressions)
        except _Died as died:
            raise self._unanswered(died, expressions) from died

    async def _exchange(
        self, process: ChildProcess, request: bytes, expressions: Sequence[str]
    ) -> dict[str, Any]:
        whole = False
        try:
            if process.reader.at_eof():
                raise _Died(await process.wait())
            async with asyncio.timeout(self.bounds.wall_s):
                process.writer.write(struct.pack(">I", len(request)) + request)
                await process.writer.drain()
                (length,) = struct.unpack(">I", await process.reader.readexactly(4))
                if length > self.bounds.value_bytes + 4096:
                    raise _too_much(expressions, "produced too large a value")
                answer = json.loads(await process.reader.readexactly(length))
            whole = True
            return dict(answer)
        except TimeoutError as exc:
            raise _too_much(expressions, f"took longer than {self.bounds.wall_s:g} s") from exc
        except (asyncio.IncompleteReadError, OSError) as exc:
            raise _Died(await process.wait()) from exc
        finally:
            if whole:
                self._idle.append(process)
            else:
                await process.aclose()

    def _unanswered(self, died: _Died, expressions: Sequence[str]) -> SandkastenError:
        if died.status >= 0:
            return InternalError(
                f"the process that evaluates expressions ended with status {died.status}",
                hint=f"check that the extra is installed: {install_command('agents')}",
            )
        if died.status == -signal.SIGPROF:
            why = f"took more than {self.bounds.cpu_s:g} s of processor time"
        else:
            why = "used too much memory, or crashed the process that evaluates it"
        return _too_much(expressions, why)

    async def _spawn(self) -> ChildProcess:
        b = self.bounds
        bounds = (str(b.cpu_s), str(b.memory_bytes), str(b.value_bytes))
        return await start_child(
            (sys.executable, "-I", str(_EVALUATOR), *bounds),
            streams=("stdin", "stdout"),
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            cwd="/",
        )


def _request(expressions: Sequence[str], context: Mapping[str, Any]) -> bytes:
    """Return the expressions with what they read, for the evaluator."""
    for expression in expressions:
        if why := problem(expression):
            raise RunFailed(
                f"the expression {_shown(expression)} {why}", expression=expression[:200]
            )
    referenced = frozenset().union(*(_references(expression) for expression in expressions))
    chosen = {name: value for name, value in context.items() if name in referenced}
    return json.dumps({"expressions": list(expressions), "context": chosen}).encode()


def _failure(
    answer: Mapping[str, Any], expressions: Sequence[str], context: Mapping[str, Any]
) -> RunFailed:
    index = answer.get("failed")
    expression = expressions[index] if isinstance(index, int) else expressions[0]
    kind, message = str(answer.get("kind")), str(answer.get("message"))
    if kind == "TooLong":
        return _too_much(expressions, message)
    missing = missing_path(expression, context)
    if missing and kind in ("KeyError", "IndexError", "RuntimeError", "TypeError"):
        return RunFailed(
            f"the expression {_shown(expression)} uses {missing}, which does not exist",
            hint=f"test it first: has({missing})"
            if "[" not in missing
            else "test first whether it exists",
            expression=expression[:200],
            missing=missing[:200],
        )
    if kind == "KeyError":
        message = f"unknown {message}"
    # The first sentence is the error; the following ones are explanations.
    why = message.splitlines()[0].partition(". ")[0][:300]
    return RunFailed(
        f"the expression {_shown(expression)} cannot be evaluated: {why}",
        hint="expressions are written in CEL: && || ! == in, has(x.y), size(x)",
        expression=expression[:200],
    )


def _too_much(expressions: Sequence[str], why: str) -> RunLimitReached:
    return RunLimitReached(
        f"the expression {_shown(expressions[0])} {why}",
        hint="use less data, and avoid nested loops over long lists",
        expression=expressions[0][:200],
    )


def _shown(expression: str) -> str:
    return f"`{expression if len(expression) <= 80 else expression[:77] + '...'}`"
