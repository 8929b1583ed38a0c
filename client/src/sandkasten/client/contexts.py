"""Code contexts of a sandbox, and one call in them: the asynchronous client and its twin."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from sandkasten.client.blocking.twins import waiting
from sandkasten.model.commands.code_values import (
    CodeContext,
    CodeDisplay,
    CodeRequest,
    ContextRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandkasten.client.sandbox import AsyncSandbox
    from sandkasten.model.commands.code_values import CodeItem, CodeReader, CodeResult


class AsyncContexts:
    """The code contexts of one sandbox: kernels that keep their variables."""

    def __init__(self, box: AsyncSandbox) -> None:
        self._box = box

    async def create(
        self,
        language: str = "python",
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CodeContext:
        """Start a context and wait until it is ready; pass its id to `run_code`."""
        request = ContextRequest(language, cwd, env or {})
        return await (await self._box.transport()).code.create(self._box.id, request)

    async def list(self) -> builtins.list[CodeContext]:
        """Return the contexts that run, oldest first."""
        return builtins.list(await (await self._box.transport()).code.list(self._box.id))

    async def languages(self) -> builtins.list[str]:
        """Return the languages that the image has a kernel for, sorted."""
        return builtins.list(await (await self._box.transport()).code.languages(self._box.id))

    async def restart(self, context: CodeContext | str) -> None:
        """Replace the kernel of a context: its variables are gone."""
        await (await self._box.transport()).code.restart(self._box.id, _id(context))

    async def interrupt(self, context: CodeContext | str) -> None:
        """Interrupt the code that runs in a context; quiet if none does."""
        await (await self._box.transport()).code.interrupt(self._box.id, _id(context))

    async def remove(self, context: CodeContext | str) -> None:
        """End a context."""
        await (await self._box.transport()).code.remove(self._box.id, _id(context))


class Contexts:
    """The code contexts of one sandbox: kernels that keep their variables."""

    def __init__(self, twin: AsyncContexts) -> None:
        self._twin = twin

    create = waiting(AsyncContexts.create)
    list = waiting(AsyncContexts.list)
    languages = waiting(AsyncContexts.languages)
    restart = waiting(AsyncContexts.restart)
    interrupt = waiting(AsyncContexts.interrupt)
    remove = waiting(AsyncContexts.remove)


async def run_in_context(
    box: AsyncSandbox,
    code: str,
    language: str,
    context: CodeContext | str | None,
    *,
    timeout_ms: float | None,
    env: Mapping[str, str] | None,
    on_stdout: Callable[[str], object] | None,
    on_stderr: Callable[[str], object] | None,
    on_result: Callable[[CodeDisplay], object] | None,
) -> CodeResult:
    request = CodeRequest(
        code,
        language,
        None if context is None else _id(context),
        env or {},
        None if timeout_ms is None else timeout_ms / 1000,
    )

    def show(item: CodeItem) -> None:
        if isinstance(item, CodeDisplay):
            if on_result is not None:
                on_result(item)
        elif on_stdout is not None and item.stream == "stdout":
            on_stdout(item.text)
        elif on_stderr is not None and item.stream == "stderr":
            on_stderr(item.text)

    quiet = on_stdout is None and on_stderr is None and on_result is None
    reader: CodeReader | None = None if quiet else show
    return await (await box.transport()).code.run(box.id, request, show=reader)


def _id(context: CodeContext | str) -> str:
    return context if isinstance(context, str) else context.id


__all__ = ["AsyncContexts", "Contexts", "run_in_context"]
