"""Record what the engine does in the audit log: commands, code, file writes, decisions of policy,
ends.

A command is recorded when the runner gets it and when it has ended, or once for both if it ends
within 50 ms. These records are written up to 50 ms later, because a write for each would cost
more than many commands do. What a crash lost of them is recorded by the next daemon as far as the
runner knows it, which is all but the command line. No runner knows code; the next daemon takes it
from the journal. Other records are written before the caller gets its answer. Text of users is
shortened and without what looks like a secret; file content and output are never recorded. Without
a log this module does nothing, and it never makes a request fail.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from sandkasten.errors import (
    InvalidImage,
    IsolationRefused,
    PolicyDenied,
    QuotaExceeded,
    SandkastenError,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.audit_records import AuditFilter, AuditRow
from sandkasten.model.commands.code_values import kernel_line
from sandkasten.model.commands.exec_values import Pty
from sandkasten.model.ids import is_cell_id
from sandkasten.model.journal_rows import ExecRow
from sandkasten.model.redaction import excerpt
from sandkasten.model.sandbox.limits import Limits
from sandkasten.ports.spans import CallingAgent, caller_agent, caller_key, request_id

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from sandkasten.model.commands.exec_values import ExecResult
    from sandkasten.model.files.file_entries import FileEntry
    from sandkasten.model.journal_rows import SessionEnd
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import AuditLog, Clock, OutputRecording, Recordings
    from sandkasten_runtime.wire.messages import ExecReply

_COMMAND_CHARS: Final = 4096
CODE_CHARS: Final = 4096
_ENV_CHARS: Final = 512
_NAME_CHARS: Final = 100
_MOST_RUNNING: Final = 10_000
# More than can end in the moment that a crash may lose.
_MOST_LOST: Final = 2000
_PATH_CHARS: Final = 512
_RULES_CHARS: Final = 2048
_CODE: Final = frozenset(
    [
        "BASH_ENV",
        "ENV",
        "GCONV_PATH",
        "GIT_SSH_COMMAND",
        "JAVA_TOOL_OPTIONS",
        "LD_AUDIT",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "NODE_OPTIONS",
        "PATH",
        "PERL5LIB",
        "PERL5OPT",
        "PROMPT_COMMAND",
        "PYTHONHOME",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "RUBYOPT",
    ]
)
# An image is invalid also if the operator's list does not have it.
_DECISIONS: Final = (PolicyDenied, QuotaExceeded, IsolationRefused, InvalidImage)


@dataclass(frozen=True, slots=True)
class RecordedCommand:
    """A command that is started, as the log shows it."""

    line: tuple[str, ...] | str
    shell: str | None = None
    terminal: bool = False
    env: Collection[str] = ()
    """Names of the variables that it was given."""
    code: bytes | None = None
    """The program that a one-shot runs, which the command line only names as a file."""


@dataclass(slots=True)
class _ExecNote:
    """A command for the log. Cheap to make: the rest is done when the log writes it."""

    tenant: str
    session_id: str
    exec_id: str
    at: float
    key_id: str | None
    request_id: str | None
    agent: CallingAgent | None
    command: RecordedCommand | None = None
    code: ExecRow | None = None
    """Code in a context, instead of a command line."""
    env: Collection[str] = ()
    outcome: str | None = None
    """None: it was started, and more is not known."""
    result: ExecResult | ExecRow | None = None
    recovered: bool = False
    taken: bool = False

    def row(self) -> AuditRow:
        detail: dict[str, str] = {}
        if self.command is not None:
            detail |= _command(self.command)
        if self.code is not None:
            detail |= _code(self.code)
        if self.env:
            detail["env"] = _names(self.env)
        detail |= _agent(self.agent)
        if self.recovered:
            detail["recovered"] = "true"
        usage: dict[str, int] = {}
        if self.result is not None:
            detail |= _ending(self.result)
            usage = _usage(self.result)
        verb = "code" if is_cell_id(self.exec_id) else "exec"
        return AuditRow(
            seq=0,
            at=self.at,
            tenant=self.tenant,
            key_id=self.key_id,
            action=f"{verb}.start" if self.outcome is None else f"{verb}.end",
            target=self.exec_id,
            outcome=self.outcome or "ok",
            request_id=self.request_id or "",
            detail=detail,
            kind="exec",
            session_id=self.session_id,
            usage=usage,
        )


@dataclass(slots=True)
class FileChange:
    """A change of files for the log. Its owner adds to `detail` what it learns."""

    action: str
    path: str
    detail: dict[str, str] = field(default_factory=dict)

    def made(self, entry: FileEntry) -> FileEntry:
        self.detail["size_bytes"] = str(entry.size)
        return entry


class AuditTrail:
    def __init__(self, log: AuditLog | None, clock: Clock) -> None:
        self.log = log
        self._clock = clock
        self._running: dict[str, _ExecNote] = {}
        self._recorded: dict[str, None] = {}
        """Ids of those whose end was recorded last."""
        self._newest: tuple[set[str], float] | None = None
        self.recordings: Recordings | None = None
        self.background: dict[str, OutputRecording] = {}
        """Recordings of commands that run in the background, by exec id."""

    async def aclose(self) -> None:
        for recording in self.background.values():
            recording.close()
        self.background.clear()
        if self.log is not None:
            await self.log.aclose()

    def recording(
        self, record: Record, exec_id: str, line: tuple[str, ...] | str, pty: Pty | None = None
    ) -> OutputRecording | None:
        """Return what records the output of a command; None if it is not recorded."""
        if self.recordings is None or record.hidden:
            return None
        title = line if isinstance(line, str) else shlex.join(line[:_COMMAND_CHARS])
        size = Pty(24, 80) if pty is None else pty
        return self.recordings.begin(record.id, exec_id, title, rows=size.rows, cols=size.cols)

    # ---- commands

    def exec_asked(self, record: Record, exec_id: str, command: RecordedCommand) -> None:
        """Record a command that the runner gets next."""
        if self.log is not None:
            note = self._note(record.tenant, record.id, exec_id)
            note.command, note.env = command, command.env
            self._begin(note)

    @contextmanager
    def starting(self, record: Record, exec_id: str, command: RecordedCommand) -> Iterator[None]:
        """Record a command that the block starts, and the error if it cannot be started."""
        self.exec_asked(record, exec_id, command)
        try:
            yield
        except SandkastenError as exc:
            self.exec_failed(record.tenant, record.id, exec_id, exc.code)
            raise

    @contextmanager
    def starting_keyed(
        self, record: Record, exec_id: str, command: RecordedCommand
    ) -> Iterator[None]:
        """Record the error if the block cannot start a command with an idempotency key.

        The block may find the command of an earlier request, so its caller records the start.
        """
        try:
            yield
        except SandkastenError as exc:
            self.exec_asked(record, exec_id, command)
            self.exec_failed(record.tenant, record.id, exec_id, exc.code)
            raise

    def acted(self, record: Record, action: str, target: str, **detail: str) -> None:
        """Record what a caller does to something that runs already, maybe for another caller."""
        self._write("exec", action, record.tenant, record.id, target, "ok", detail)

    def exec_ended(
        self,
        tenant: str,
        session_id: str,
        result: ExecResult,
        *,
        row: ExecRow | None = None,
        recovered: bool = False,
    ) -> None:
        """Record how a command ended, and what it used. `row`: what is known of its start, if
        another process or request started it. `recovered`: its start was not recorded, because the
        process that started it died.
        """
        if kernel_line(result.exec_id) is not None:
            # What it wrote are messages, and not output.
            result = replace(result, stdout_bytes=0, stderr_bytes=0)
        self._ended(tenant, session_id, result.exec_id, result, result.status, row, recovered)

    def code_asked(self, row: ExecRow, env: Collection[str]) -> None:
        """Record code that a context gets next. `env`: names of the variables that it was given."""
        if self.log is not None:
            note = self._note(row.tenant, row.session_id, row.id)
            note.code, note.env = row, env
            self._begin(note)

    def code_ended(self, row: ExecRow, *, recovered: bool = False) -> None:
        """Record how code ended. `recovered`: the process that ran it died."""
        if self.log is None:
            return
        if recovered:
            note = self._note(row.tenant, row.session_id, row.id, row)
            note.code, note.recovered = row, True
            note.result, note.outcome = row, row.status
            self.log.record_soon(note)
        else:
            self._ended(row.tenant, row.session_id, row.id, row, row.status)

    def _begin(self, note: _ExecNote) -> None:
        assert self.log is not None
        self._running[note.exec_id] = note
        if len(self._running) > _MOST_RUNNING:
            del self._running[next(iter(self._running))]
        self.log.record_soon(note)

    async def unrecorded(self, replies: Sequence[ExecReply]) -> Sequence[ExecReply]:
        """Return the ended commands whose end is not in the log, as far as its newest records
        tell. For an engine that has just been started.
        """
        if self.log is None:
            return ()
        if self._newest is None:
            wanted = AuditFilter(kind="exec", action="exec.end", limit=_MOST_LOST, newest=True)
            rows = await self.log.read(wanted)
            # Older ones may be recorded without being among the newest.
            oldest = min((row.at for row in rows), default=0.0) if len(rows) == _MOST_LOST else 0.0
            self._newest = ({row.target for row in rows}, oldest)
        recorded, oldest = self._newest
        return [
            reply
            for reply in replies
            if reply.ended
            and reply.exec_id not in recorded
            and (reply.started_ms + reply.duration_ms) / 1000 > oldest
        ]

    def exec_failed(
        self, tenant: str, session_id: str, exec_id: str, code: str, row: ExecRow | None = None
    ) -> None:
        """Record that a command could not be run, or that its end is unknown."""
        self._ended(tenant, session_id, exec_id, None, code, row)

    def _ended(
        self,
        tenant: str,
        session_id: str,
        exec_id: str,
        result: ExecResult | ExecRow | None,
        outcome: str,
        row: ExecRow | None = None,
        recovered: bool = False,
    ) -> None:
        # Several callers may wait for one command, by its idempotency key.
        if self.log is None or exec_id in self._recorded:
            return
        self._recorded[exec_id] = None
        if len(self._recorded) > _MOST_RUNNING:
            del self._recorded[next(iter(self._recorded))]
        start = self._running.pop(exec_id, None)
        if start is not None and not start.taken:
            # Both in one record.
            start.result, start.outcome, start.at = result, outcome, self._clock.now()
            return
        note = self._note(tenant, session_id, exec_id, row)
        if start is not None:
            # The caller that waits for the end, or the task that follows it, did not start it.
            note.key_id, note.request_id, note.agent = start.key_id, start.request_id, start.agent
        note.result, note.outcome, note.recovered = result, outcome, recovered
        line = kernel_line(exec_id) if recovered else None
        note.command = None if line is None else RecordedCommand(line)
        self.log.record_soon(note)

    def _note(
        self, tenant: str, session_id: str, exec_id: str, row: ExecRow | None = None
    ) -> _ExecNote:
        """Return a note with the caller of this request, or with that of `row`."""
        now = self._clock.now()
        if row is not None:
            agent = None if row.agent is None else CallingAgent(row.agent, row.run_id or "")
            return _ExecNote(tenant, session_id, exec_id, now, row.key_id, None, agent)
        key, request, agent = caller_key.get(), request_id.get(), caller_agent.get()
        return _ExecNote(tenant, session_id, exec_id, now, key, request, agent)

    # ---- files

    @contextmanager
    def changing(self, record: Record, change: FileChange) -> Iterator[None]:
        """Record the change that the block makes, or the error that prevented it."""
        try:
            yield
        except SandkastenError as exc:
            self._file(record, change, exc.code)
            if isinstance(exc, PolicyDenied):
                self.refused(change.action, record.tenant, record.id, exc)
            raise
        self._file(record, change, "ok")

    def _file(self, record: Record, change: FileChange, outcome: str) -> None:
        if self.log is not None:
            path = excerpt(_path(change.path), _PATH_CHARS)
            detail = {
                name: excerpt(_path(text), _PATH_CHARS) for name, text in change.detail.items()
            }
            self._write("file", change.action, record.tenant, record.id, path, outcome, detail)

    # ---- policy

    def allowed(self, record: Record, key_id: str | None) -> None:
        """Record a sandbox that the policy allows, before it is made, and its secrets."""
        if self.log is None:
            return
        detail = {
            "image": record.image,
            "backend": record.backend,
            "profile": record.profile,
            "network": _rules(record.network),
            "limits": _rules({name: getattr(record.limits, name) for name in Limits.__slots__}),
        }
        if record.mounts:
            detail["mounts"] = str(len(record.mounts))
        if record.env_names:
            detail["env"] = _names(record.env_names)
        self._write(
            "policy",
            "policy.allow",
            record.tenant,
            record.id,
            "session.create",
            "ok",
            detail,
            key_id=key_id,
        )
        self._secrets(record, key_id)

    def passed_over(
        self,
        tenant: str,
        key_id: str | None,
        backend: str,
        following: str,
        error: SandkastenError,
        rule: str,
    ) -> None:
        """Record that a rule of the operator leads past a backend that is unavailable."""
        message = excerpt(error.operator_message, _PATH_CHARS)
        detail = {"rule": rule, "next": following, "message": message}
        self._write(
            "policy", "policy.pass_over", tenant, None, backend, error.code, detail, key_id=key_id
        )

    def network_allowed(self, record: Record) -> None:
        """Record the network that a living sandbox got."""
        if self.log is None:
            return
        detail = {"network": _rules(record.network)}
        self._write(
            "policy", "policy.allow", record.tenant, record.id, "session.update", "ok", detail
        )
        self._secrets(record, None)

    @contextmanager
    def deciding(self, what: str, tenant: str, session_id: str | None = None) -> Iterator[None]:
        """Record an error of the block that is a decision of the operator's policy or quota."""
        try:
            yield
        except _DECISIONS as exc:
            self.refused(what, tenant, session_id, exc)
            raise

    def refused(
        self, what: str, tenant: str, session_id: str | None, error: SandkastenError
    ) -> None:
        detail = {"message": excerpt(error.message, _PATH_CHARS)}
        self._write("policy", "policy.refuse", tenant, session_id, what, error.code, detail)

    def _secrets(self, record: Record, key_id: str | None) -> None:
        names = record.network.get("secrets", ()) if isinstance(record.network, dict) else ()
        for name in names:
            self._write(
                "key", "secret.use", record.tenant, record.id, str(name), "ok", key_id=key_id
            )

    # ---- sandboxes

    def session_ended(self, record: Record, end: SessionEnd, reason: str) -> None:
        if record.hidden:
            return
        detail = {"reason": excerpt(reason, _PATH_CHARS)} if reason else {}
        self._write("session", "session.end", record.tenant, record.id, record.id, end, detail)

    def network(
        self, record: Record, action: str, target: str, outcome: str, detail: Mapping[str, str]
    ) -> None:
        self._write("network", action, record.tenant, record.id, target, outcome, detail)

    def _write(
        self,
        kind: str,
        action: str,
        tenant: str,
        session_id: str | None,
        target: str,
        outcome: str,
        detail: Mapping[str, str] | None = None,
        *,
        key_id: str | None = None,
    ) -> None:
        if self.log is not None:
            self.log.record(
                AuditRow(
                    seq=0,
                    at=self._clock.now(),
                    tenant=tenant,
                    key_id=key_id or caller_key.get(),
                    action=action,
                    target=target,
                    outcome=outcome,
                    request_id=request_id.get() or "",
                    detail={**(detail or {}), **_agent(caller_agent.get())},
                    kind=kind,
                    session_id=session_id,
                )
            )


def _command(command: RecordedCommand) -> dict[str, str]:
    line = command.line
    text = line if isinstance(line, str) else shlex.join(line)
    detail = _shortened("command", text, _COMMAND_CHARS)
    if command.code is not None:
        detail |= _shortened("code", command.code.decode(errors="replace"), CODE_CHARS)
    if command.shell is not None:
        detail["shell"] = command.shell
    if command.terminal:
        detail["terminal"] = "true"
    return detail


def _shortened(name: str, text: str, most: int) -> dict[str, str]:
    """Return the beginning of a text, and what shows which text it was if that is not all."""
    detail = {name: excerpt(text, most)}
    if len(text) > most:
        data = text.encode("utf-8", "surrogateescape")
        detail[f"{name}_bytes"] = str(len(data))
        detail[f"{name}_sha256"] = hashlib.sha256(data).hexdigest()
    return detail


def _path(text: str) -> str:
    r"""Return a path with `\xff` for bytes that are not UTF-8, so that names stay different."""
    # An invalid path is refused, and recorded as the client sent it.
    with suppress(UnicodeEncodeError):
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text


def _names(names: Collection[str]) -> str:
    """Return names of variables, first those that can make a program run other code."""
    return excerpt(" ".join(sorted(names, key=lambda name: (name not in _CODE, name))), _ENV_CHARS)


def _agent(agent: CallingAgent | None) -> dict[str, str]:
    return {} if agent is None else {"agent": agent.name, "run_id": agent.run_id}


def _code(row: ExecRow) -> dict[str, str]:
    detail = {"code": excerpt(row.command, CODE_CHARS), "language": row.language or ""}
    if row.context_id is not None:
        detail["context"] = row.context_id
    if row.command_sha256 is not None or len(row.command) > CODE_CHARS:
        detail["code_bytes"] = str(row.command_bytes)
        whole = row.command_sha256 or hashlib.sha256(row.command.encode()).hexdigest()
        detail["code_sha256"] = whole
    return detail


def _ending(result: ExecResult | ExecRow) -> dict[str, str]:
    detail: dict[str, str] = {}
    if isinstance(result, ExecRow):
        if result.error_name is not None:
            detail["error"] = excerpt(result.error_name, _NAME_CHARS)
        if result.network is not None and result.network.refused:
            refused = [f"{refusal.host}:{refusal.port}" for refusal in result.network.refused]
            detail["refused"] = excerpt(" ".join(refused), _PATH_CHARS)
        return detail
    if result.exit_code is not None:
        detail["exit_code"] = str(result.exit_code)
    if result.signal is not None:
        detail["signal"] = str(result.signal)
    if result.why is not None:
        detail["why"] = result.why.code
    return detail


def _usage(result: ExecResult | ExecRow) -> dict[str, int]:
    if isinstance(result, ExecRow):
        # The kernel is measured, and not each piece of code.
        names = ("duration_ms", "stdout_bytes", "stderr_bytes")
        return {name: getattr(result, name) or 0 for name in names}
    used = result.usage
    return {
        "cpu_ms": used.cpu_ms,
        "peak_memory_bytes": used.peak_memory_bytes,
        "io_read_bytes": used.io_read_bytes,
        "io_write_bytes": used.io_write_bytes,
        "duration_ms": result.duration_ms,
        "stdout_bytes": result.stdout_bytes,
        "stderr_bytes": result.stderr_bytes,
    }


def _rules(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str, sort_keys=True)
    return excerpt(text, _RULES_CHARS)
