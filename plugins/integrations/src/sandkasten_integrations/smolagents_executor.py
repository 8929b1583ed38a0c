"""Run the code of smolagents' CodeAgent in a sandbox."""

from __future__ import annotations

import base64
import io
import re
from typing import TYPE_CHECKING, Any

from sandkasten import Sandbox
from sandkasten_integrations.framework_import import framework_import

with framework_import("smolagents", "smolagents"):
    import PIL.Image
    from smolagents.local_python_executor import CodeOutput
    from smolagents.monitoring import AgentLogger, LogLevel
    from smolagents.remote_executors import RemotePythonExecutor
    from smolagents.tools import Tool, get_tools_definition_code
    from smolagents.utils import AgentError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from sandkasten import CodeDisplay

_PICTURES = ("png", "jpeg")
# In the order in which smolagents' own executors look for a value.
_FORMS = ("chart", "data", "html", "javascript", "json", "latex", "markdown", "pdf", "svg", "text")
_OPTIONAL = re.compile("^import (numpy|PIL)$", re.MULTILINE)
_ATTEMPT = r"""try:
    import \1
except ImportError:
    pass"""


class SandkastenExecutor(RemotePythonExecutor):
    """A Python executor for `CodeAgent(executor=…)`: one code context of one sandbox."""

    def __init__(
        self,
        additional_imports: Sequence[str] = (),
        logger: AgentLogger | None = None,
        allow_pickle: bool = False,
        *,
        sandbox: Sandbox | None = None,
        timeout_seconds: float | None = None,
        **options: Any,
    ) -> None:
        """Create a sandbox with `options`, or use `sandbox`, which `cleanup` does not end.

        The packages of `additional_imports` are installed before the sandbox starts; it needs no
        network for them. Its image needs ipykernel.
        """
        super().__init__(
            list(additional_imports), logger or AgentLogger(LogLevel.ERROR), allow_pickle
        )
        self._owns = sandbox is None
        self._timeout_ms = None if timeout_seconds is None else timeout_seconds * 1000
        if additional_imports:
            options["pip_packages"] = [*options.get("pip_packages", ()), *additional_imports]
        self.sandbox = sandbox or Sandbox(**options)
        self.installed_packages = list(additional_imports)

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Run code and return what it displayed and printed; AgentError if it failed."""
        done = self.sandbox.run_code(code, timeout_ms=self._timeout_ms)
        if done.error is not None and done.error.name == self.FINAL_ANSWER_EXCEPTION:
            answer = self._deserialize_final_answer(done.error.value, self.allow_pickle)
            return CodeOutput(output=answer, logs=done.stdout, is_final_answer=True)
        if done.status != "ok":
            reason = f"The code ended with status {done.status}."
            if done.error is not None and not done.timed_out:
                reason = f"{done.error.name}\n{done.error.value}\n{done.error.traceback}"
            raise AgentError(
                f"{done.stdout}\nExecuting code yielded an error:\n{reason}", self.logger
            )
        shown = next((_value(result) for result in done.results if result.main), None)
        return CodeOutput(output=shown, logs=done.stdout, is_final_answer=False)

    def send_tools(self, tools: dict[str, Tool]) -> None:
        """Define the tools in the context. Their packages must be in the sandbox already.

        `final_answer` imports numpy and pillow only for their values, so they can be missing.
        """
        if "final_answer" in tools:
            self._patch_final_answer_with_exception(tools["final_answer"])
        code = get_tools_definition_code(tools)
        self.run_code_raise_errors(_OPTIONAL.sub(_ATTEMPT, code))

    def cleanup(self) -> None:
        """Destroy the sandbox, unless it was given."""
        if self._owns:
            self.sandbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cleanup()


def _value(shown: CodeDisplay) -> object:
    for form in _PICTURES:
        if (data := getattr(shown, form)) is not None:
            return PIL.Image.open(io.BytesIO(base64.b64decode(data)))
    return next((value for form in _FORMS if (value := getattr(shown, form)) is not None), None)


__all__ = ["SandkastenExecutor"]
