"""The program of a code context, as the engine starts it in a sandbox.

Its modules travel as one JSON object over stdin and are loaded in order, so nothing is written to
the sandbox, and an image needs only python3 and a kernel.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import TYPE_CHECKING, Final

from sandkasten.errors import CommandNotFound, KernelFailed, KernelNotFound
from sandkasten.model.commands.code_values import is_language
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.images.known_images import DENO, JJAVA
from sandkasten.model.spelling import nearest

if TYPE_CHECKING:
    from sandkasten.model.commands.code_values import ContextRequest
    from sandkasten_runtime.engine.commands.execution import Execution

_PACKAGE: Final = "sandkasten_runtime.engine.code"
# In the order of their imports; the last one is the program.
_MODULES: Final = ("kernel_specs", "kernel_process", "kernel_bridge")
# Code that kernels run.
_SOURCES: Final = ("kernel_prelude", "bash_kernel")
_LOAD: Final = (
    "import json,os,sys,types;n=int(sys.argv.pop());b=b''\n"
    "while len(b)<n:b+=os.read(0,n-len(b))\n"
    "modules,sources=json.loads(b)\n"
    "for name,source in modules.items():\n"
    " m=sys.modules[name]=types.ModuleType(name);exec(compile(source,name,'exec'),m.__dict__)\n"
    "m.main(sources)"
)
_LIST_S: Final = 30.0
_MAX_LIST_BYTES: Final = 64 * 1024
_MAX_LANGUAGES: Final = 100
_SCIENCE: Final = (
    'use an image that has one: `sandkasten image build datascience`, then image="datascience"; '
    'or pass pip_packages=["ipykernel"]'
)
_INTERPRETER: Final = (
    "use an image that has one: `sandkasten image build code-interpreter-v1`, then "
    'image="code-interpreter-v1"; or '
)
_DENO: Final = f'{_INTERPRETER}pass pip_packages=["ipykernel", "{DENO}"]'
_HINTS: Final = {
    "python": _SCIENCE,
    "bash": _SCIENCE,
    "javascript": _DENO,
    "typescript": _DENO,
    "r": _INTERPRETER + "install the Debian package r-cran-irkernel in yours",
    "java": _INTERPRETER + "install the Debian package openjdk-17-jdk-headless in yours, and pass "
    f'pip_packages=["ipykernel", "{JJAVA}"]',
}
_ANY: Final = "install a Jupyter kernel for it below /usr/local/share/jupyter/kernels of the image"


def no_kernel(language: str, detail: str = "") -> KernelNotFound:
    return KernelNotFound(
        detail or f"the image has no kernel for {language}",
        hint=_HINTS.get(language) or _did_you_mean(language) or _ANY,
        language=language,
    )


def _did_you_mean(language: str) -> str:
    near = nearest(language, _HINTS)
    return "" if near is None else f"did you mean {near}?"


class ContextProgram:
    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._payload: bytes | None = None

    async def start(
        self, sandbox_id: str, the_id: str, context: ContextRequest, idle_s: float, kept_bytes: int
    ) -> None:
        """Start the program as a background command. It ends when it is idle for `idle_s`."""
        idle = f"{idle_s:g}" if math.isfinite(idle_s) and idle_s > 0 else "1e9"
        payload = await self._read()
        request = ExecRequest(
            _command(payload, context.language, idle),
            cwd=context.cwd,
            env=context.env,
            stdin=payload,
            keep_stdin_open=True,
            max_output_bytes=kept_bytes,
        )
        try:
            await self._execution.start(sandbox_id, request, exec_id=the_id)
        except CommandNotFound as exc:
            raise _no_python(context.language) from exc

    async def languages(self, sandbox_id: str) -> tuple[str, ...]:
        payload = await self._read()
        request = ExecRequest(
            _command(payload, "--list"),
            stdin=payload,
            timeout_seconds=_LIST_S,
            max_output_bytes=_MAX_LIST_BYTES,
        )
        try:
            result = await self._execution.run(sandbox_id, request, line="list of kernels")
        except CommandNotFound:
            return ()
        try:
            listed = json.loads(result.stdout)
        except (ValueError, RecursionError):
            listed = None
        if not isinstance(listed, list):
            raise KernelFailed(
                "the kernels of the image could not be listed",
                hint="run python3 in the sandbox to see what is wrong with it",
            )
        return tuple(
            sorted({language for language in listed[:_MAX_LANGUAGES] if is_language(language)})
        )

    async def _read(self) -> bytes:
        if self._payload is None:
            self._payload = await asyncio.to_thread(_payload)
        return self._payload


def shown_words(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command line of a process; a short one instead of that of this program."""
    if words[1:3] == ("-c", _LOAD):
        return (words[0], "kernel_bridge", *words[3:-1])
    return words


def _command(payload: bytes, *words: str) -> tuple[str, ...]:
    return ("python3", "-c", _LOAD, *words, str(len(payload)))


def _payload() -> bytes:
    # Imported here: it takes longer than a short command, and most commands have no contexts.
    from importlib import resources

    files = resources.files(_PACKAGE)
    modules = {f"{_PACKAGE}.{name}": files.joinpath(f"{name}.py").read_text() for name in _MODULES}
    sources = {name: files.joinpath(f"{name}.py").read_text() for name in _SOURCES}
    return json.dumps([modules, sources]).encode()


def _no_python(language: str) -> KernelNotFound:
    return no_kernel(language, "the image has no python3, which code contexts need")
