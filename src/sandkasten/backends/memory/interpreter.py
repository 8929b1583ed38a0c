"""Runs the tree of commands that `syntax` made, on the fake's files and processes.

Pipes, background jobs and programs are processes of their own and can be killed one by one;
builtins run in the shell. Knows no requests. `exit` leaves by ExitShell; a signal, by
cancellation.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandkasten.backends.memory import syntax
from sandkasten.backends.memory.descriptors import (
    FromFile,
    Nothing,
    Pipe,
    Sink,
    Source,
    ToFile,
    Zeros,
)
from sandkasten.backends.memory.refusal import Refusal, strerror
from sandkasten.backends.memory.tree import Directory, File, Special

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from sandkasten.backends.memory.machine import Machine
    from sandkasten.backends.memory.processes import Process


class ExitShell(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True, slots=True)
class Stdio:
    """The three descriptors a program has."""

    stdin: Source
    stdout: Sink
    stderr: Sink


@dataclass(slots=True)
class State:
    """What a shell remembers from one command to the next."""

    cwd: bytes
    variables: dict[str, str]
    exported: set[str]
    positional: tuple[str, ...] = ("sh",)
    status: int = 0
    last_background: int | None = None
    jobs: list[Process] = field(default_factory=list)

    @classmethod
    def fresh(cls, environment: Mapping[str, str], cwd: bytes) -> State:
        return cls(cwd, dict(environment), set(environment))

    def copy(self) -> State:
        return State(
            self.cwd,
            dict(self.variables),
            set(self.exported),
            self.positional,
            self.status,
            self.last_background,
        )

    def environment(self) -> dict[str, str]:
        return {name: self.variables[name] for name in self.exported if name in self.variables}


@dataclass(frozen=True, slots=True)
class Invocation:
    """One run of a program or a builtin."""

    machine: Machine
    process: Process
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: bytes
    stdio: Stdio
    exec_id: str | None

    async def say(self, text: str) -> None:
        await self.stdio.stdout.write(encode(text))

    async def complete(self, work: Callable[[Invocation], Awaitable[int]]) -> int:
        """Run to the end; a write the file system refused is the program's own failure."""
        try:
            return await work(self)
        except Refusal as refusal:
            await self.complain(f"write error: {strerror(refusal)}")
            return 1

    async def complain(self, text: str) -> None:
        await self.stdio.stderr.write(encode(f"{self.argv[0]}: {text}\n"))


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def decode(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


class Interpreter:
    def __init__(
        self,
        machine: Machine,
        state: State,
        process: Process,
        exec_id: str | None,
        *,
        becomes: bool = False,
    ) -> None:
        """`becomes`: the process was made for one command alone and turns into its program."""
        self.machine = machine
        self._becomes = becomes
        self.state = state
        self.process = process
        self.exec_id = exec_id

    async def run_text(self, text: str, stdio: Stdio) -> int:
        """Parse all of it, then run it; a syntax error is status 2 and nothing ran."""
        try:
            body = syntax.parse(text)
        except syntax.SyntaxTrouble as trouble:
            await stdio.stderr.write(encode(f"sh: {trouble}\n"))
            self.state.status = 2
            return 2
        return await self.run(body, stdio)

    async def run(self, body: syntax.Sequence, stdio: Stdio) -> int:
        for item in body.items:
            await asyncio.sleep(0)
            if item.background:
                self._background(item, stdio)
            else:
                await self._and_or(item, stdio)
        return self.state.status

    def _background(self, item: syntax.AndOr, stdio: Stdio) -> None:
        foreground = syntax.AndOr(item.pipelines, item.links, background=False)
        job = self._subshell(syntax.Sequence((foreground,)), Stdio(Nothing(), *_outs(stdio)))
        self.state.jobs.append(job)
        self.state.last_background = job.pid
        self.state.status = 0

    def _subshell(self, body: syntax.Sequence, stdio: Stdio) -> Process:
        state = self.state.copy()
        alone = _is_one_command(body)

        async def live(process: Process) -> int:
            try:
                inner = Interpreter(self.machine, state, process, self.exec_id, becomes=alone)
                return await inner.run(body, stdio)
            except ExitShell as leaving:
                return leaving.status

        return self.machine.processes.spawn(
            ("sh",), live, parent=self.process, exec_id=self.exec_id
        )

    async def _and_or(self, item: syntax.AndOr, stdio: Stdio) -> None:
        await self._pipeline(item.pipelines[0], stdio)
        for link, pipeline in zip(item.links, item.pipelines[1:], strict=True):
            if (link == "&&") == (self.state.status == 0):
                await self._pipeline(pipeline, stdio)

    async def _pipeline(self, pipeline: syntax.Pipeline, stdio: Stdio) -> None:
        if len(pipeline.commands) == 1:
            self.state.status = await self._command(pipeline.commands[0], stdio)
        else:
            self.state.status = await self._piped(pipeline.commands, stdio)
        if pipeline.negated:
            self.state.status = 0 if self.state.status else 1

    async def _piped(self, commands: tuple[syntax.Command, ...], stdio: Stdio) -> int:
        processes: list[Process] = []
        source: Source = stdio.stdin
        for number, command in enumerate(commands):
            pipe = Pipe() if number < len(commands) - 1 else None
            inner = Stdio(source, pipe if pipe is not None else stdio.stdout, stdio.stderr)
            processes.append(self._stage(command, inner, source, pipe))
            if pipe is not None:
                source = pipe
        for process in processes:
            await process.wait()
        return processes[-1].status

    def _stage(
        self, command: syntax.Command, stdio: Stdio, source: Source, sink: Pipe | None
    ) -> Process:
        state = self.state.copy()
        alone = isinstance(command, syntax.Simple)

        async def live(process: Process) -> int:
            try:
                inner = Interpreter(self.machine, state, process, self.exec_id, becomes=alone)
                return await inner._command(command, stdio)
            except ExitShell as leaving:
                return leaving.status
            finally:
                if sink is not None:
                    sink.close_write()
                if isinstance(source, Pipe):
                    source.close_read()

        return self.machine.processes.spawn(
            ("sh",), live, parent=self.process, exec_id=self.exec_id
        )

    async def _command(self, command: syntax.Command, stdio: Stdio) -> int:
        if isinstance(command, syntax.Simple):
            return await self._simple(command, stdio)
        if isinstance(command, syntax.Group):
            try:
                stdio = await self._redirected(command.redirects, stdio)
            except Refusal as refusal:
                await stdio.stderr.write(encode(f"sh: {refusal.message}\n"))
                return 1
            if command.subshell:
                return await self._subshell(command.body, stdio).wait()
            return await self.run(command.body, stdio)
        if isinstance(command, syntax.If):
            if await self.run(command.condition, stdio) == 0:
                return await self.run(command.then, stdio)
            return await self.run(command.otherwise, stdio) if command.otherwise else 0
        if isinstance(command, syntax.While):
            status = 0
            while await self.run(command.condition, stdio) == 0:
                status = await self.run(command.body, stdio)
            return status
        status = 0
        for word in await self._expand(command.words, stdio):
            self.state.variables[command.name] = word
            status = await self.run(command.body, stdio)
        return status

    async def _simple(self, command: syntax.Simple, stdio: Stdio) -> int:
        words = await self._expand(command.words, stdio)
        values = {name: await self._one(word, stdio) for name, word in command.assignments}
        try:
            stdio = await self._redirected(command.redirects, stdio)
        except Refusal as refusal:
            await stdio.stderr.write(encode(f"sh: {refusal.message}\n"))
            return 1
        if not words:
            self.state.variables.update(values)
            return self.state.status if not values and not command.redirects else 0
        builtin = self.machine.builtins.get(words[0])
        environment = {**self.state.environment(), **values}
        if builtin is not None:
            run = self._invocation(tuple(words), environment, stdio)
            return await run.complete(lambda one: builtin(self, one))
        return await self._program(tuple(words), environment, stdio)

    def _invocation(
        self, argv: tuple[str, ...], environment: Mapping[str, str], stdio: Stdio
    ) -> Invocation:
        return Invocation(
            self.machine, self.process, argv, environment, self.state.cwd, stdio, self.exec_id
        )

    async def _program(
        self, argv: tuple[str, ...], environment: Mapping[str, str], stdio: Stdio
    ) -> int:
        try:
            if self._becomes:
                return await self.machine.become(
                    self.process, argv, environment, self.state.cwd, stdio, self.exec_id
                )
            child = self.machine.start(
                argv, environment, self.state.cwd, stdio, self.process, self.exec_id
            )
        except Refusal as refusal:
            known = {"command_not_found": (127, "command not found")}
            status, text = known.get(refusal.code, (126, strerror(refusal)))
            await stdio.stderr.write(encode(f"sh: {argv[0]}: {text}\n"))
            return status
        return await child.wait()

    # ---- redirections

    async def _redirected(self, redirects: tuple[syntax.Redirect, ...], stdio: Stdio) -> Stdio:
        table: dict[int, Source | Sink] = {0: stdio.stdin, 1: stdio.stdout, 2: stdio.stderr}
        for redirect in redirects:
            target = await self._one(redirect.target, stdio)
            if redirect.operator in (">&", "<&"):
                if not target.isdigit() or int(target) not in table:
                    raise Refusal("invalid", f"{target}: Bad file descriptor")
                table[redirect.fd] = table[int(target)]
            else:
                try:
                    table[redirect.fd] = self._opened(encode(target), redirect.operator)
                except Refusal as refusal:
                    raise Refusal(refusal.code, f"{target}: {strerror(refusal)}") from refusal
        stdin, stdout, stderr = table[0], table[1], table[2]
        return Stdio(
            stdin if _reads(stdin) else Nothing(),  # type: ignore[arg-type]
            stdout if _writes(stdout) else Nothing(),  # type: ignore[arg-type]
            stderr if _writes(stderr) else Nothing(),  # type: ignore[arg-type]
        )

    def _opened(self, path: bytes, operator: str) -> Source | Sink:
        tree = self.machine.tree
        place = tree.find(path, self.state.cwd)
        if isinstance(place.node, Special) and place.node.kind == "char":
            return Zeros() if place.path == b"/dev/zero" else Nothing()
        if operator == "<":
            return FromFile(tree.open_file(path, self.state.cwd))
        if isinstance(place.node, Directory):
            raise Refusal("is_directory", "Is a directory")
        if isinstance(place.node, File):
            if not place.node.mode & 0o200 or place.node.uid != 1000:
                raise Refusal("permission", "Permission denied")
            file = place.node
            if operator == ">":
                file.truncate()
                tree.changed("modified", place.path, file)
        elif place.node is None:
            file = tree.create_file(place)
        else:
            raise Refusal("invalid", "the fake has no fifos to talk through")
        return ToFile(tree, file, place.path, append=operator == ">>")

    # ---- expansion

    async def _expand(self, words: tuple[syntax.Word, ...], stdio: Stdio) -> list[str]:
        found: list[str] = []
        for word in words:
            found += await self._fields(word, stdio)
        return found

    async def _one(self, word: syntax.Word, stdio: Stdio) -> str:
        return "".join([text for text, _ in [await self._part(part, stdio) for part in word]])

    async def _fields(self, word: syntax.Word, stdio: Stdio) -> list[str]:
        if len(word) == 1 and isinstance(word[0], syntax.Variable) and word[0].name == "@":
            return list(self.state.positional[1:])
        fields: list[str] = []
        current: str | None = None
        for number, part in enumerate(word):
            text, split = await self._part(part, stdio)
            if number == 0 and isinstance(part, syntax.Literal) and not part.quoted:
                text = self._tilde(text)
            if not split:
                current = (current or "") + text
                continue
            pieces = text.split()
            if text[:1].isspace() and current is not None:
                fields.append(current)
                current = None
            for piece in pieces[:-1]:
                fields.append((current or "") + piece)
                current = None
            if pieces:
                current = (current or "") + pieces[-1]
                if text[-1:].isspace():
                    fields.append(current)
                    current = None
        return fields if current is None else [*fields, current]

    def _tilde(self, text: str) -> str:
        if text == "~" or text.startswith("~/"):
            return self.state.variables.get("HOME", "~") + text[1:]
        return text

    async def _part(self, part: syntax.Part, stdio: Stdio) -> tuple[str, bool]:
        """The text of a part, and whether it is to be split into fields."""
        if isinstance(part, syntax.Literal):
            return part.text, False
        if isinstance(part, syntax.Variable):
            value = self._variable(part.name)
            if not value and part.default is not None:
                value = part.default
            return value or "", not part.quoted
        pipe = Pipe()
        child = self._subshell(part.body, Stdio(stdio.stdin, pipe, stdio.stderr))
        if child.task is not None:
            child.task.add_done_callback(lambda _: pipe.close_write())
        pieces: list[bytes] = []
        while piece := await pipe.read():
            pieces.append(piece)
        self.state.status = await child.wait()
        return decode(b"".join(pieces)).rstrip("\n"), not part.quoted

    def _variable(self, name: str) -> str | None:
        state = self.state
        if name.isdigit():
            index = int(name)
            return state.positional[index] if index < len(state.positional) else None
        special = {
            "?": str(state.status),
            "$": str(self.process.pid),
            "!": "" if state.last_background is None else str(state.last_background),
            "#": str(len(state.positional) - 1),
            "@": " ".join(state.positional[1:]),
            "*": " ".join(state.positional[1:]),
            "PWD": decode(state.cwd),
        }
        return special.get(name, state.variables.get(name))


def _is_one_command(body: syntax.Sequence) -> bool:
    if len(body.items) != 1 or len(body.items[0].pipelines) != 1:
        return False
    (pipeline,) = body.items[0].pipelines
    return len(pipeline.commands) == 1 and isinstance(pipeline.commands[0], syntax.Simple)


def _outs(stdio: Stdio) -> tuple[Sink, Sink]:
    return stdio.stdout, stdio.stderr


def _reads(end: Source | Sink) -> bool:
    return hasattr(end, "read")


def _writes(end: Source | Sink) -> bool:
    return hasattr(end, "write")
