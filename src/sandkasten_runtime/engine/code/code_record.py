"""The record of one piece of code: in the history, the audit log and the recordings.

Every way to run code passes through `CodeContexts.run`, which opens one of these. It is recorded
before its context gets it and once more at its end, whatever that is; also if the caller leaves.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

from sandkasten.errors import (
    Busy,
    ContextNotFound,
    KernelFailed,
    KernelNotFound,
    QuotaExceeded,
    SandkastenError,
)
from sandkasten.model.commands.code_values import CodeDisplay, CodeText
from sandkasten.model.ids import new_cell_id
from sandkasten.model.journal_rows import CODE_BYTES, ExecRow, shortened
from sandkasten.ports.spans import caller_agent, caller_key
from sandkasten_runtime.engine.commands.exec_endings import missing_network, refused_between

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.commands.code_values import CodeItem, CodeReader, CodeRequest, CodeResult
    from sandkasten.model.journal_rows import ExecStatus
    from sandkasten.ports import OutputRecording
    from sandkasten_runtime.engine.commands.exec_history import ExecHistory
    from sandkasten_runtime.engine.handles import Handle

# A kernel that is replaced ends the code that it runs.
_STATUSES: Final[dict[str, ExecStatus]] = {
    "ok": "completed",
    "error": "error",
    "timed_out": "timed_out",
    "interrupted": "interrupted",
    "restarted": "killed",
    "died": "killed",
}
_NOT_RUN: Final = (Busy, ContextNotFound, KernelNotFound, QuotaExceeded)
_NAME_CHARS: Final = 100
_FORMS: Final = tuple(
    field.name for field in fields(CodeDisplay) if field.name not in ("text", "extra", "main")
)


class CodeRecord:
    """Enter it around all attempts to run the code, and call `begins` before each."""

    def __init__(
        self,
        handle: Handle,
        history: ExecHistory,
        request: CodeRequest,
        reachable: Sequence[str] = (),
    ) -> None:
        """`reachable`: the operator's `network.reachable`."""
        self._handle = handle
        self._reachable = reachable
        self._history = history
        self._trail = history.trail
        self._clock = history.clock
        self._recording: OutputRecording | None = None
        self._result: CodeResult | None = None
        code, agent = shortened(request.code, CODE_BYTES), caller_agent.get()
        self._code = request.code
        self._begun = False
        self._bytes = {"stdout": 0, "stderr": 0}
        self._row = ExecRow(
            id=new_cell_id(),
            session_id=handle.record.id,
            tenant=handle.record.tenant,
            command=code.text,
            status="running",
            started_at=history.clock.now(),
            kind="cell",
            language=request.language,
            context_id=request.context,
            command_bytes=code.size_bytes,
            command_sha256=code.sha256,
            key_id=caller_key.get(),
            agent=None if agent is None else agent.name,
            run_id=None if agent is None else agent.run_id,
        )
        self._env = tuple(request.env)

    def __enter__(self) -> CodeRecord:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if self._recording is not None:
            self._recording.close()
        if error is None:
            return
        if not self._begun:
            self._trail.code_asked(self._row, self._env)
        if self._result is not None:
            # The caller left after the code had ended.
            self._end_with(self._result)
        elif not isinstance(error, SandkastenError):
            # The caller left, which interrupts its code.
            self._end("interrupted")
        elif isinstance(error, _NOT_RUN):
            self._end("error", error.code)
        else:
            self._end("killed" if isinstance(error, KernelFailed) else "lost", error.code)

    async def begins(self, context: str) -> None:
        self._row = replace(self._row, context_id=context)
        if not self._begun:
            self._begun = True
            # The context may have been started for it.
            self._row = replace(self._row, started_at=self._clock.now())
            self._trail.code_asked(self._row, self._env)
            self._recording = self._trail.recording(self._handle.record, self._row.id, self._code)
        await self._history.code_begins(self._row)

    def shown_to(self, show: CodeReader | None) -> CodeReader:
        """Return a reader that records what code prints and displays, and passes it on."""

        def take(item: CodeItem) -> None:
            if isinstance(item, CodeText):
                self._bytes[item.stream] += len(item.text.encode())
                self._record(item.text)
            else:
                self._record(_names(item))
            if show is not None:
                show(item)

        return take

    async def ended(self, result: CodeResult) -> CodeResult:
        """Return the result with what the network refused."""
        self._result = result
        if result.error is not None:
            name = result.error.name[:_NAME_CHARS]
            self._record((result.error.traceback or f"{name}: {result.error.value}") + "\n")
        now = self._clock.now()
        try:
            began = self._row.started_at
            network = await refused_between(self._handle, began, now, self._reachable)
        except SandkastenError:
            # It only explains; the code has run.
            network = None
        if network is None and result.error is not None:
            network = missing_network(self._handle, 1, result.error.value.encode())
        self._row = replace(self._row, network=network)
        self._end_with(result)
        return replace(result, network=network)

    def _end_with(self, result: CodeResult) -> None:
        name = None
        # Interrupted code ends with a KeyboardInterrupt, which is not a separate error.
        if result.error is not None and result.status in ("error", "died"):
            name = result.error.name[:_NAME_CHARS]
        self._end(_STATUSES[result.status], name)

    def _end(self, status: ExecStatus, error_name: str | None = None) -> None:
        row = self._row
        lasted_ms = int(max(0.0, self._clock.now() - row.started_at) * 1000)
        self._row = replace(
            row,
            status=status,
            error_name=error_name,
            duration_ms=lasted_ms,
            stdout_bytes=self._bytes["stdout"],
            stderr_bytes=self._bytes["stderr"],
        )
        self._history.code_ended(self._row)
        self._trail.code_ended(self._row)

    def _record(self, text: str) -> None:
        if self._recording is not None:
            self._recording.add(text.encode("utf-8", "replace"))


def _names(shown: CodeDisplay) -> str:
    """Return a value as text, and the names of its other forms: pictures are not shown."""
    forms = [name for name in _FORMS if getattr(shown, name) is not None]
    forms += shown.extra
    text = "" if shown.text is None else shown.text + "\n"
    return text + (f"[{', '.join(forms)}]\n" if forms else "")
