"""The programs in the fake's /usr/bin: small, honest subsets of their namesakes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from sandkasten.backends.memory.file_programs import FILE_PROGRAMS, open_operand
from sandkasten.backends.memory.interpreter import (
    ExitShell,
    Interpreter,
    Invocation,
    State,
    decode,
    encode,
)
from sandkasten.backends.memory.refusal import Refusal, strerror
from sandkasten.backends.memory.tree import Directory, File, Link

Program: TypeAlias = Callable[[Invocation], Awaitable[int]]

_LINES_PER_WRITE = 4096


async def _true(run: Invocation) -> int:
    return 0


async def _false(run: Invocation) -> int:
    return 1


async def _echo(run: Invocation) -> int:
    words = list(run.argv[1:])
    newline = "\n"
    if words[:1] == ["-n"]:
        words, newline = words[1:], ""
    await run.say(" ".join(words) + newline)
    return 0


async def _printf(run: Invocation) -> int:
    if len(run.argv) < 2:
        await run.complain("usage: printf format [arguments]")
        return 2
    pieces, arguments = _pieces(_unescaped(encode(run.argv[1]))), [encode(a) for a in run.argv[2:]]
    out = b""
    while True:
        taken = 0
        for piece in pieces:
            if piece in (b"%s", b"%d"):
                value = arguments.pop(0) if arguments else (b"0" if piece == b"%d" else b"")
                out += value
                taken += 1
            else:
                out += b"%" if piece == b"%%" else piece
        if not arguments or not taken:
            break
    await run.stdio.stdout.write(out)
    return 0


def _pieces(text: bytes) -> list[bytes]:
    pieces: list[bytes] = []
    at = 0
    while at < len(text):
        if text[at : at + 2] in (b"%s", b"%d", b"%%"):
            pieces.append(text[at : at + 2])
            at += 2
        else:
            pieces.append(text[at : at + 1])
            at += 1
    return pieces


def _unescaped(text: bytes) -> bytes:
    """Backslash escapes as printf knows them, octal bytes among them."""
    plain = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"\\": b"\\", b"a": b"\a", b'"': b'"'}
    out, at = b"", 0
    while at < len(text):
        char = text[at : at + 1]
        if char != b"\\":
            out += char
            at += 1
            continue
        digits = at + 1
        while digits < at + 4 and text[digits : digits + 1] in tuple(b"%d" % d for d in range(8)):
            digits += 1
        if digits > at + 1:
            out += bytes([int(text[at + 1 : digits], 8) & 0xFF])
            at = digits
        else:
            following = text[at + 1 : at + 2]
            out += plain.get(following, char + following)
            at += 2
    return out


async def _pwd(run: Invocation) -> int:
    await run.say(decode(run.cwd) + "\n")
    return 0


async def _env(run: Invocation) -> int:
    environment, words = dict(run.environment), list(run.argv[1:])
    while words and words[0] in ("-i", "-u"):
        if words.pop(0) == "-i":
            environment = {}
        else:
            environment.pop(words.pop(0), None)
    while words and "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    if words:
        return await _run(run, tuple(words), environment)
    await run.say("".join(f"{name}={value}\n" for name, value in environment.items()))
    return 0


async def _run(run: Invocation, argv: tuple[str, ...], environment: Mapping[str, str]) -> int:
    try:
        child = run.machine.start(argv, environment, run.cwd, run.stdio, run.process, run.exec_id)
    except Refusal as refusal:
        await run.complain(f"{argv[0]}: {strerror(refusal)}")
        return 127 if refusal.code == "command_not_found" else 126
    return await child.wait()


async def _sleep(run: Invocation) -> int:
    try:
        seconds = sum(float(word) for word in run.argv[1:])
    except ValueError:
        await run.complain(f"invalid time interval '{run.argv[1]}'")
        return 1
    await asyncio.sleep(seconds)
    return 0


async def _seq(run: Invocation) -> int:
    numbers = [int(word) for word in run.argv[1:]]
    first, last = (1, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[-1])
    for start in range(first, last + 1, _LINES_PER_WRITE):
        stop = min(start + _LINES_PER_WRITE, last + 1)
        await run.say("".join(f"{number}\n" for number in range(start, stop)))
    return 0


async def _yes(run: Invocation) -> int:
    line = encode(" ".join(run.argv[1:]) or "y") + b"\n"
    block = line * max(1, 65536 // len(line))
    while True:
        await run.stdio.stdout.write(block)


async def _test(run: Invocation) -> int:
    words = list(run.argv[1:])
    if run.argv[0] == "[":
        if words[-1:] != ["]"]:
            await run.complain("missing `]'")
            return 2
        words.pop()
    negated = False
    while words[:1] == ["!"]:
        words.pop(0)
        negated = not negated
    verdict = _holds(run, words)
    if verdict is None:
        await run.complain("this test is not known here")
        return 2
    return 0 if verdict != negated else 1


def _holds(run: Invocation, words: list[str]) -> bool | None:
    if len(words) <= 1:
        return bool(words and words[0])
    if len(words) == 3:
        left, operator, right = words
        if operator in ("=", "==", "!="):
            return (left == right) == (operator != "!=")
        numbers = {"-eq": "__eq__", "-ne": "__ne__", "-lt": "__lt__", "-gt": "__gt__"}
        if operator in numbers:
            return bool(getattr(int(left), numbers[operator])(int(right)))
        return None
    if len(words) == 2:
        operator, operand = words
        if operator in ("-n", "-z"):
            return bool(operand) == (operator == "-n")
        return _file_holds(run, operator, operand)
    return None


def _file_holds(run: Invocation, operator: str, operand: str) -> bool | None:
    try:
        node = run.machine.tree.find(encode(operand), run.cwd, follow=operator != "-L").node
    except Refusal:
        node = None
    checks = {
        "-e": node is not None,
        "-f": isinstance(node, File),
        "-d": isinstance(node, Directory),
        "-L": isinstance(node, Link),
        "-s": isinstance(node, File) and len(node.data) > 0,
        "-x": node is not None and bool(node.mode & 0o100),
    }
    return checks.get(operator)


async def _sh(run: Invocation) -> int:
    state = State.fresh(run.environment, run.cwd)
    shell = Interpreter(run.machine, state, run.process, run.exec_id)
    words = [word for word in run.argv[1:] if word not in ("-e", "-i", "-l")]
    try:
        if words[:1] == ["-c"]:
            if len(words) < 2:
                await run.complain("-c: option requires an argument")
                return 2
            state.positional = tuple(words[2:]) or (run.argv[0],)
            return await shell.run_text(words[1], run.stdio)
        if words:
            state.positional = tuple(words)
            script = await open_operand(run, words[0])
            if script is None:
                return 127
            return await shell.run_text(await _all(script.read), run.stdio)
        return await _interactive(shell, run)
    except ExitShell as leaving:
        return leaving.status


async def _interactive(shell: Interpreter, run: Invocation) -> int:
    """Commands from stdin, a line at a time."""
    rest = b""
    while piece := await run.stdio.stdin.read():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            await shell.run_text(decode(line), run.stdio)
    return await shell.run_text(decode(rest), run.stdio) if rest else shell.state.status


async def _all(read: Callable[[], Awaitable[bytes]]) -> str:
    pieces: list[bytes] = []
    while piece := await read():
        pieces.append(piece)
    return decode(b"".join(pieces))


PROGRAMS: Mapping[str, Program] = MappingProxyType(
    {
        ":": _true,
        "[": _test,
        "bash": _sh,
        "echo": _echo,
        "env": _env,
        "false": _false,
        "printf": _printf,
        "pwd": _pwd,
        "seq": _seq,
        "sh": _sh,
        "sleep": _sleep,
        "test": _test,
        "true": _true,
        "yes": _yes,
        **FILE_PROGRAMS,
    }
)
