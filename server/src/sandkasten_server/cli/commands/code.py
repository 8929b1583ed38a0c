"""`code ID`: run code in a context of a sandbox, once or at a prompt.

Ctrl-C interrupts the code that runs. Pictures are saved as files; nothing is overwritten. A line
that begins with a colon and a known name is a command of the prompt.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sandkasten_server.cli.options import Environment, Id, Json, Timeout, pairs, state_of
from sandkasten_server.cli.state import State, go

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.client.sandbox import AsyncSandbox
    from sandkasten.model.commands.code_values import CodeContext, CodeDisplay, CodeResult
    from sandkasten_server.cli.output import Allow

_FAILED: Final = 1
_TIMED_OUT: Final = 124
_MAX_NAMES: Final = 10_000
_EXAMPLES: Final = """\b
Examples:
  sandkasten code ID
  sandkasten code ID -c 'import math; math.pi'
  sandkasten code ID -l bash -c 'ls -l'
  sandkasten code ID < analysis.py"""


def add_to(app: typer.Typer) -> None:
    app.command("code", epilog=_EXAMPLES)(_code)


def _code(
    context: typer.Context,
    id: Id,
    code: Annotated[
        str | None,
        typer.Option(
            "--code", "-c", metavar="CODE", help="Code to run; default: a prompt, or stdin."
        ),
    ] = None,
    language: Annotated[
        str, typer.Option("--language", "-l", metavar="L", help="Language of the context.")
    ] = "python",
    named: Annotated[
        str | None,
        typer.Option("--context", metavar="CTX", help="Id of a context; default: the language's."),
    ] = None,
    save: Annotated[
        str, typer.Option("--save", metavar="DIR", help="Directory for pictures.")
    ] = ".",
    timeout: Timeout = None,
    env: Environment = [],  # noqa: B006
    languages: Annotated[
        bool, typer.Option("--languages", help="List the languages of the image, and end.")
    ] = False,
    json: Json = False,
) -> None:
    """Run code in a sandbox; variables stay. Exit status 1 if it raised, 124 if it timed out."""
    session = _Session(
        state_of(context, json=json), language, named, timeout, pairs(env, "--env"), Path(save)
    )
    status = go(session.list_languages(id) if languages else session.run(id, code))
    if status:
        raise typer.Exit(status)


class _Session:
    def __init__(
        self,
        state: State,
        language: str,
        context: str | None,
        timeout_s: float | None,
        env: Mapping[str, str],
        directory: Path,
    ) -> None:
        from sandkasten.model.commands.code_values import checked_language

        self._state = state
        self._language = checked_language(language)
        self._context = context
        self._timeout_ms = None if timeout_s is None else timeout_s * 1000
        self._env = env
        self._directory = directory

    async def list_languages(self, start: str) -> int:
        from sandkasten_server.cli.output import put, put_json

        languages = await (await self._attach(start)).contexts.languages()
        if self._state.json:
            put_json(languages)
        else:
            put("\n".join(languages))
        return 0

    async def _attach(self, start: str) -> AsyncSandbox:
        from sandkasten.client.sandbox import AsyncSandbox
        from sandkasten_server.cli.sandbox_names import resolve

        return await AsyncSandbox.attach(await resolve(self._state, start), **self._state.where)

    async def run(self, start: str, code: str | None) -> int:
        from sandkasten.model.json_codec import to_json
        from sandkasten_server.cli.output import put_json

        box = await self._attach(start)
        if code is None and sys.stdin.isatty() and not self._state.json:
            return await self._prompt(box)
        if code is None:
            code = await asyncio.to_thread(sys.stdin.read)
        result = await self._call(box, str(code))
        if self._state.json:
            put_json(to_json(result))
        return _TIMED_OUT if result.timed_out else 0 if result.status == "ok" else _FAILED

    async def _prompt(self, box: AsyncSandbox) -> int:
        from sandkasten.errors import KernelNotFound, NotFound, SandkastenError
        from sandkasten_server.cli.code_prompt import HELP, history, read_code
        from sandkasten_server.cli.output import report, say

        say(f"{self._language} in {box.id}; Ctrl-D ends, {HELP} helps")
        with history():
            while True:
                try:
                    code = read_code(self._language)
                except EOFError:
                    say("")
                    return 0
                except KeyboardInterrupt:
                    say("")
                    continue
                if not code.strip():
                    continue
                try:
                    if not await self._command(box, code):
                        await self._call(box, code)
                except SandkastenError as exc:
                    if isinstance(exc, NotFound) and not isinstance(exc, KernelNotFound):
                        raise
                    report(exc, as_json=False)

    async def _command(self, box: AsyncSandbox, line: str) -> bool:
        """Execute a command of the prompt; return False if the line is code."""
        from sandkasten.model.commands.code_values import checked_language
        from sandkasten_server.cli.code_prompt import COMMANDS, HELP
        from sandkasten_server.cli.output import say

        name, _, rest = line.strip().partition(" ")
        if name == HELP:
            say("\n".join(f"{command:<16}{what}" for command, what in COMMANDS.items()))
        elif name == ":languages":
            say("\n".join(await box.contexts.languages()))
        elif name == ":language" and rest:
            await self._switch(box, checked_language(rest.strip()))
        elif name == ":restart" and not rest:
            for context in await self._contexts(box):
                await box.contexts.restart(context)
            say("the variables are gone")
        else:
            return False
        return True

    async def _switch(self, box: AsyncSandbox, language: str) -> None:
        from sandkasten_server.cli.output import tell

        languages = await box.contexts.languages()
        if language in languages:
            self._language, self._context = language, None
        else:
            tell(
                "error", f"the image has no kernel for {language} (it has: {', '.join(languages)})"
            )

    async def _call(self, box: AsyncSandbox, code: str) -> CodeResult:
        from sandkasten_server.cli.output import write_chunk

        quiet = self._state.json

        def show(stream: str, text: str) -> None:
            write_chunk(stream, text.encode(), 0)

        loop = asyncio.get_running_loop()
        interrupts: set[asyncio.Task[None]] = set()

        def interrupted() -> None:
            interrupts.add(asyncio.ensure_future(self._interrupt(box)))

        loop.add_signal_handler(signal.SIGINT, interrupted)
        try:
            result = await box.run_code(
                code,
                self._language,
                self._context,
                self._timeout_ms,
                self._env,
                on_stdout=None if quiet else lambda text: show("stdout", text),
                on_stderr=None if quiet else lambda text: show("stderr", text),
                on_result=None if quiet else self._show,
            )
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            for task in interrupts:
                task.cancel()
            await asyncio.gather(*interrupts, return_exceptions=True)
        if not quiet:
            explain(result, _allow(box))
        return result

    async def _interrupt(self, box: AsyncSandbox) -> None:
        for context in await self._contexts(box):
            await box.contexts.interrupt(context)

    async def _contexts(self, box: AsyncSandbox) -> list[CodeContext]:
        """Return the context that calls use, if it runs."""
        return [
            context
            for context in await box.contexts.list()
            if context.id == self._context
            or (self._context is None and context.default and context.language == self._language)
        ]

    def _show(self, result: CodeDisplay) -> None:
        """Save the pictures of a result; print its text if it has no picture."""
        from sandkasten_server.cli.output import say, write_chunk

        saved = [
            self._save(kind, data)
            for kind in ("png", "jpeg", "svg", "pdf")
            if (data := getattr(result, kind)) is not None
        ]
        for name in saved:
            say(f"saved {name}")
        text = result.text if result.markdown is None else result.markdown
        if text is not None and not saved:
            write_chunk("stdout", text.encode() + b"\n", 0)

    def _save(self, kind: str, data: str) -> str:
        from sandkasten.errors import FileTrouble, KernelFailed

        try:
            raw = data.encode() if kind == "svg" else base64.b64decode(data, validate=True)
        except binascii.Error as exc:
            raise KernelFailed(
                f"a result is not a valid {kind}", hint="display the picture again"
            ) from exc
        for number in range(1, _MAX_NAMES):
            path = self._directory / f"code-{number}.{kind}"
            if path.exists():
                continue
            try:
                path.write_bytes(raw)
            except OSError as exc:
                raise FileTrouble(
                    f"could not save {path}: {exc.strerror}", hint="pass a directory to --save"
                ) from exc
            return str(path)
        raise KernelFailed(
            f"{self._directory} has {_MAX_NAMES - 1} pictures already",
            hint="pass another directory to --save",
        )


def _allow(box: AsyncSandbox) -> Allow | None:
    """Return the function that names the command to add rules; None if the rules are unknown."""
    from sandkasten_server.cli.commands.exec import allow_command

    network = None if box.known is None else box.known.network
    return None if network is None else functools.partial(allow_command, box.id, network)


def explain(result: CodeResult, allow: Allow | None = None) -> None:
    """Print what neither the output nor the exit status shows."""
    from sandkasten_server.cli.output import tell, tell_network, write_chunk

    if result.error is not None:
        shown = result.error.traceback or f"{result.error.name}: {result.error.value}"
        write_chunk("stderr", shown.encode() + b"\n", 0)
    if result.timed_out:
        tell("error", "the code was interrupted at its timeout")
    if result.kernel_restarted:
        tell("warning", "the kernel was replaced, and its variables are lost")
    if result.truncated:
        tell("warning", "output or results over a limit were left out")
    if result.network is not None:
        network = result.network
        tell_network(network.refused, network.suggested, network.hint, allow)
