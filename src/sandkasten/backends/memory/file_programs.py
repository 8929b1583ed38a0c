"""The programs of the fake that work on files: cat, head, wc, ls, mkdir, rm, touch, ln, …"""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING

from sandkasten.backends.memory.descriptors import FromFile, Source, Zeros
from sandkasten.backends.memory.interpreter import Invocation, decode, encode
from sandkasten.backends.memory.refusal import Refusal, strerror
from sandkasten.backends.memory.tree import Directory, Link, Special

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping


async def open_operand(run: Invocation, name: str) -> Source | None:
    """What a file operand reads from; None after complaining."""
    if name == "-":
        return run.stdio.stdin
    try:
        place = run.machine.tree.find(encode(name), run.cwd)
        if place.path == b"/dev/zero":
            return Zeros()
        return FromFile(run.machine.tree.open_file(encode(name), run.cwd))
    except Refusal as refusal:
        await run.complain(f"{name}: {strerror(refusal)}")
        return None


async def _cat(run: Invocation) -> int:
    status = 0
    for name in run.argv[1:] or ("-",):
        source = await open_operand(run, name)
        if source is None:
            status = 1
            continue
        while piece := await source.read():
            await run.stdio.stdout.write(piece)
    return status


async def _head(run: Invocation) -> int:
    words = list(run.argv[1:])
    unit, count = "-n", 10
    if words and words[0] in ("-c", "-n"):
        unit, count, words = words[0], int(words[1]), words[2:]
    source = await open_operand(run, words[0] if words else "-")
    if source is None:
        return 1
    while count > 0 and (piece := await source.read()):
        if unit == "-c":
            kept = piece[:count]
            count -= len(kept)
        else:
            lines = piece.split(b"\n", count)
            kept = piece if len(lines) <= count else piece[: len(piece) - len(lines[-1])]
            count -= kept.count(b"\n")
        await run.stdio.stdout.write(kept)
    return 0


async def _wc(run: Invocation) -> int:
    words = list(run.argv[1:])
    unit = words.pop(0) if words and words[0] in ("-c", "-l") else "-c"
    source = await open_operand(run, words[0] if words else "-")
    if source is None:
        return 1
    count = 0
    while piece := await source.read():
        count += len(piece) if unit == "-c" else piece.count(b"\n")
    await run.say(f"{count} {words[0]}\n" if words else f"{count}\n")
    return 0


async def _ls(run: Invocation) -> int:
    names = [word for word in run.argv[1:] if not word.startswith("-")]
    for name in names or ["."]:
        try:
            place, node = run.machine.tree.existing(encode(name), run.cwd)
        except Refusal as refusal:
            await run.complain(f"cannot access '{name}': {strerror(refusal)}")
            return 2
        listed = sorted(node.children) if isinstance(node, Directory) else [place.name]
        await run.say("".join(decode(one) + "\n" for one in listed if one[:1] != b"."))
    return 0


def _each(
    change: Callable[[Invocation, str, frozenset[str]], None],
) -> Callable[[Invocation], Awaitable[int]]:
    """A program that does one thing to each operand and complains about each refusal."""

    async def program(run: Invocation) -> int:
        words = run.argv[1:]
        options = frozenset("".join(word[1:] for word in words if _is_option(word)))
        status = 0
        for name in words:
            if _is_option(name):
                continue
            try:
                change(run, name, options)
            except Refusal as refusal:
                await run.complain(f"cannot act on '{name}': {strerror(refusal)}")
                status = 1
        return status

    return program


def _is_option(word: str) -> bool:
    return len(word) > 1 and word[0] == "-"


def _make_directory(run: Invocation, name: str, options: frozenset[str]) -> None:
    tree, path = run.machine.tree, encode(name)
    if "p" in options:
        tree.make_directories(path, run.cwd)
        return
    place = tree.find(path, run.cwd)
    if place.node is not None:
        raise Refusal("exists", "File exists")
    tree.put(place, Directory(place.parent.volume))


def _remove(run: Invocation, name: str, options: frozenset[str]) -> None:
    tree = run.machine.tree
    place = tree.find(encode(name), run.cwd, follow=False)
    if place.node is None and "f" in options:
        return
    if isinstance(place.node, Directory) and "r" not in options:
        raise Refusal("is_directory", "Is a directory")
    tree.remove(place, recursive="r" in options)


def _remove_directory(run: Invocation, name: str, options: frozenset[str]) -> None:
    place, _ = run.machine.tree.directory(encode(name), run.cwd)
    run.machine.tree.remove(place, recursive=False)


def _touch(run: Invocation, name: str, options: frozenset[str]) -> None:
    tree = run.machine.tree
    place = tree.find(encode(name), run.cwd)
    if place.node is None:
        tree.create_file(place)
    else:
        place.node.mtime = time.time()


def _make_fifo(run: Invocation, name: str, options: frozenset[str]) -> None:
    place = run.machine.tree.find(encode(name), run.cwd)
    if place.node is not None:
        raise Refusal("exists", "File exists")
    run.machine.tree.put(place, Special("fifo"))


async def _link(run: Invocation) -> int:
    words = [word for word in run.argv[1:] if not _is_option(word)]
    if "-s" not in run.argv or len(words) != 2:
        await run.complain("only `ln -s TARGET NAME` is known here")
        return 1
    try:
        place = run.machine.tree.find(encode(words[1]), run.cwd, follow=False)
        if place.node is not None:
            raise Refusal("exists", "File exists")
        run.machine.tree.put(place, Link(encode(words[0])))
    except Refusal as refusal:
        await run.complain(f"failed to create symbolic link '{words[1]}': {strerror(refusal)}")
        return 1
    return 0


async def _change_mode(run: Invocation) -> int:
    if len(run.argv) < 3 or not run.argv[1].isdigit():
        await run.complain("only octal modes are known here")
        return 1
    for name in run.argv[2:]:
        try:
            _, node = run.machine.tree.existing(encode(name), run.cwd)
        except Refusal as refusal:
            await run.complain(f"cannot access '{name}': {strerror(refusal)}")
            return 1
        node.mode = int(run.argv[1], 8) & 0o7777
    return 0


async def _move(run: Invocation) -> int:
    words = [word for word in run.argv[1:] if not _is_option(word)]
    if len(words) != 2:
        await run.complain("two operands are needed")
        return 1
    tree = run.machine.tree
    try:
        source, node = tree.existing(encode(words[0]), run.cwd, follow=False)
        target = tree.find(encode(words[1]), run.cwd)
        tree.take(source)
        tree.put(target, node)
    except Refusal as refusal:
        await run.complain(f"cannot move '{words[0]}': {strerror(refusal)}")
        return 1
    return 0


FILE_PROGRAMS: Mapping[str, Callable[[Invocation], Awaitable[int]]] = MappingProxyType(
    {
        "cat": _cat,
        "chmod": _change_mode,
        "head": _head,
        "ln": _link,
        "ls": _ls,
        "mkdir": _each(_make_directory),
        "mkfifo": _each(_make_fifo),
        "mv": _move,
        "rm": _each(_remove),
        "rmdir": _each(_remove_directory),
        "touch": _each(_touch),
        "wc": _wc,
    }
)
