"""Results as values: text for people, bytes where the bytes matter.

Pure. Output of a sandbox is untrusted: `stdout` is decoded as UTF-8 with replacement characters,
`stdout_data` has the bytes.
"""

from __future__ import annotations

import base64
import signal as signals
import subprocess
from dataclasses import asdict, field, fields
from typing import TYPE_CHECKING, Any, Literal

from sandkasten.errors import CommandTimeout, SandboxLost
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.files.file_entries import FileBytes as FileBytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.commands.exec_values import ExecKind, ExecPast, ExecResult, Status, Why
    from sandkasten.model.sandbox.network_refusals import Refusal
    from sandkasten.model.sandbox.oneshot_values import Artifact
    from sandkasten.model.sandbox.oneshot_values import RunResult as EngineRunResult
    from sandkasten.model.sandbox.usage import ExecUsage

Number = int | float


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def text_fields(**streams: bytes) -> dict[str, str]:
    """Return the JSON fields of output: `name`, and `name_b64` too if it is not UTF-8."""
    fields: dict[str, str] = {}
    for name, data in streams.items():
        fields[name] = _text(data)
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            fields[f"{name}_b64"] = base64.b64encode(data).decode("ascii")
    return fields


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended, or that it still runs. A failed command is a result, not an error."""

    exec_id: str = field(repr=False)
    status: Status
    exit_code: int | None
    """None when it is not known; it is never invented."""
    signal: int | None = field(repr=False)
    stdout_data: bytes
    stderr_data: bytes
    output_data: bytes = field(repr=False)
    cwd: str | None
    truncated: bool = field(repr=False)
    timed_out: bool = field(repr=False)
    oom_killed: bool = field(repr=False)
    shell_reset: bool = field(repr=False)
    """The persistent shell had to be replaced; variables and jobs of the old one are gone."""
    duration_ms: int
    stdout_bytes: int = field(repr=False)
    """All that was written, kept or not."""
    stderr_bytes: int = field(repr=False)
    last_seq: int = field(repr=False)
    usage: ExecUsage = field(repr=False)
    why: Why | None = None
    """The limit or rule that ended it."""
    shell: str | None = field(default=None, repr=False)
    started_at: float = field(default=0.0, repr=False)
    refused: tuple[Refusal, ...] = ()
    """Connections that the network refused while it ran."""
    suggested: tuple[str, ...] = ()
    """With a dry run: a rule for each host and port that was reached."""
    network_hint: str = ""
    """What to do, if the sandbox has no network and the command probably failed because of it."""

    @property
    def stdout(self) -> str:
        return _text(self.stdout_data)

    @property
    def stderr(self) -> str:
        return _text(self.stderr_data)

    @property
    def output(self) -> str:
        """Return both streams in order of arrival."""
        return _text(self.output_data)

    @property
    def ok(self) -> bool:
        return self.status == "completed" and self.exit_code == 0

    @property
    def exit_status(self) -> int | None:
        """Return what a shell would put in `$?`: the exit code, or 128 + the signal; None when
        neither is known.
        """
        return _exit_status(self.exit_code, self.signal)

    @property
    def running(self) -> bool:
        return self.status == "running"

    def check(self, cmd: str | Sequence[str] = "the command") -> Result:
        """Return itself when `ok`; otherwise raise.

        CommandTimeout when the deadline ended it, SandboxLost when its end is unknown, and
        `subprocess.CalledProcessError` when it ran and failed: that is the command's own failure
        and not an error of Sandkasten.
        """
        if self.ok:
            return self
        if self.timed_out:
            raise CommandTimeout(
                f"the command timed out after {self.duration_ms} ms",
                hint="give it a longer timeout, or start it in the background",
                exec_id=self.exec_id,
            )
        code = self.exit_code if self.exit_code is not None else -(self.signal or 0)
        if code == 0:
            raise SandboxLost(
                f"the end of the command is unknown (status {self.status})",
                hint="the sandbox may be lost; check its status with info()",
                exec_id=self.exec_id,
            )
        raise subprocess.CalledProcessError(code, cmd, self.stdout, self.stderr)

    def as_dict(self) -> dict[str, Any]:
        """Return the exec answer of the public contract, ready for JSON."""
        return {
            "exec_id": self.exec_id,
            "status": self.status,
            "exit_code": self.exit_code,
            "signal": self.signal,
            **text_fields(
                stdout=self.stdout_data, stderr=self.stderr_data, output=self.output_data
            ),
            "cwd": self.cwd,
            "truncated": self.truncated,
            "timed_out": self.timed_out,
            "oom_killed": self.oom_killed,
            "shell_reset": self.shell_reset,
            "duration_ms": self.duration_ms,
            "usage": asdict(self.usage),
            "why": None if self.why is None else asdict(self.why),
            "network": _network(self),
        }


@dataclass(frozen=True, slots=True)
class PastResult(Result):
    """One entry of a sandbox's history: a command, a piece of code, or a kernel."""

    kind: ExecKind = "command"
    command: str | None = None
    """The command line, or the code, shortened; None if only the sandbox remembers it."""
    command_bytes: int | None = None
    """Size of the whole."""
    command_sha256: str | None = field(default=None, repr=False)
    """SHA-256 of the whole, if it was shortened."""
    language: str | None = None
    """Only for code or a kernel."""
    context_id: str | None = field(default=None, repr=False)
    error_name: str | None = None
    """Only for code: the exception that ended it, or the code of the error if it was not run or its
    kernel ended.
    """
    key_id: str | None = field(default=None, repr=False)
    """The key that started it."""
    agent: str | None = None
    """The agent whose model called the tool that started it."""
    run_id: str | None = field(default=None, repr=False)
    """The run of that agent."""

    @property
    def ok(self) -> bool:
        # Code has no exit status.
        return self.status == "completed" and (self.exit_code == 0 or self.kind == "cell")

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as the history of the public contract has it, ready for JSON."""
        names = [attribute.name for attribute in fields(PastResult)][len(fields(Result)) :]
        return {**Result.as_dict(self), **{name: getattr(self, name) for name in names}}


def past_of(answer: ExecPast) -> PastResult:
    result = result_of(answer)
    return PastResult(
        **{attribute.name: getattr(result, attribute.name) for attribute in fields(Result)},
        kind=answer.kind,
        command=answer.command,
        command_bytes=answer.command_bytes,
        command_sha256=answer.command_sha256,
        language=answer.language,
        context_id=answer.context_id,
        error_name=answer.error_name,
        key_id=answer.key_id,
        agent=answer.agent,
        run_id=answer.run_id,
    )


def result_of(answer: ExecResult) -> Result:
    return Result(
        exec_id=answer.exec_id,
        status=answer.status,
        exit_code=answer.exit_code,
        signal=answer.signal,
        stdout_data=answer.stdout,
        stderr_data=answer.stderr,
        output_data=answer.output,
        cwd=answer.cwd,
        truncated=answer.truncated,
        timed_out=answer.timed_out,
        oom_killed=answer.oom_killed,
        shell_reset=answer.shell_reset,
        duration_ms=answer.duration_ms,
        stdout_bytes=answer.stdout_bytes,
        stderr_bytes=answer.stderr_bytes,
        last_seq=answer.last_seq,
        usage=answer.usage,
        why=answer.why,
        shell=answer.shell,
        started_at=answer.started_at,
        refused=() if answer.network is None else answer.network.refused,
        suggested=() if answer.network is None else answer.network.suggested,
        network_hint="" if answer.network is None else answer.network.hint,
    )


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a piece of code."""

    ok: bool
    runtime: str
    exit_code: int | None
    signal: int | None = field(repr=False)
    duration_ms: int
    stdout_data: bytes
    stderr_data: bytes
    output_data: bytes = field(repr=False)
    truncated: bool = field(repr=False)
    timed_out: bool = field(repr=False)
    oom_killed: bool = field(repr=False)
    artifacts: tuple[Artifact, ...]
    limits: Mapping[str, Number] = field(repr=False)
    image: str = field(repr=False)
    sandbox_id: str = field(repr=False)
    backend: str = field(repr=False)
    error: str | None = None
    """One sentence when not ok."""
    why: Why | None = None
    warnings: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()
    """Connections that the network refused while it ran."""
    suggested: tuple[str, ...] = ()
    """With a dry run: a rule for each host and port that was reached."""
    network_hint: str = ""
    """What to do, if the sandbox has no network and the command probably failed because of it."""
    acquire_source: Literal["pool", "cold"] = field(default="cold", repr=False)
    acquire_detail: str = field(default="", repr=False)
    """Why it did not come from the warm pool."""

    @property
    def stdout(self) -> str:
        return _text(self.stdout_data)

    @property
    def stderr(self) -> str:
        return _text(self.stderr_data)

    @property
    def output(self) -> str:
        """Return both streams in order of arrival."""
        return _text(self.output_data)

    @property
    def exit_status(self) -> int | None:
        """Return the exit code, or 128 + the signal as a shell does; None when neither is known."""
        return _exit_status(self.exit_code, self.signal)

    def as_dict(self) -> dict[str, Any]:
        """Return the run answer of the public contract, ready for JSON."""
        answer: dict[str, Any] = {
            "ok": self.ok,
            "runtime": self.runtime,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "duration_ms": self.duration_ms,
            **text_fields(stdout=self.stdout_data, stderr=self.stderr_data),
            "truncated": self.truncated,
            "timed_out": self.timed_out,
            "oom_killed": self.oom_killed,
            "artifacts": [_artifact(artifact) for artifact in self.artifacts],
            "limits": dict(self.limits),
            "image": self.image,
            "backend": self.backend,
            "why": None if self.why is None else asdict(self.why),
            "warnings": list(self.warnings),
            "network": _network(self),
            "acquire_source": self.acquire_source,
            "acquire_detail": self.acquire_detail,
        }
        if self.error is not None:
            answer["error"] = self.error
        return answer


def _exit_status(exit_code: int | None, signal: int | None) -> int | None:
    if exit_code is not None:
        return exit_code
    return None if signal is None else 128 + signal


def _network(result: Result | RunResult) -> dict[str, Any] | None:
    if not (result.refused or result.suggested or result.network_hint):
        return None
    refused = [asdict(refusal) for refusal in result.refused]
    suggested = list(result.suggested)
    return {"refused": refused, "suggested": suggested, "hint": result.network_hint}


def _artifact(artifact: Artifact) -> dict[str, Any]:
    described: dict[str, Any] = {"path": artifact.path, "size_bytes": artifact.size_bytes}
    if artifact.data is None:
        described["omitted_reason"] = artifact.omitted_reason or "not collected"
    else:
        described["content_base64"] = base64.b64encode(artifact.data).decode("ascii")
    return described


def run_result_of(answer: EngineRunResult) -> RunResult:
    return RunResult(
        ok=answer.ok,
        runtime=answer.runtime,
        exit_code=answer.exit_code,
        signal=answer.signal,
        duration_ms=answer.duration_ms,
        stdout_data=answer.stdout,
        stderr_data=answer.stderr,
        output_data=answer.output,
        truncated=answer.truncated,
        timed_out=answer.timed_out,
        oom_killed=answer.oom_killed,
        artifacts=answer.artifacts,
        limits=answer.limits,
        image=answer.image,
        sandbox_id=answer.sandbox_id,
        backend=answer.backend,
        error=answer.error,
        why=answer.why,
        warnings=answer.warnings,
        refused=() if answer.network is None else answer.network.refused,
        suggested=() if answer.network is None else answer.network.suggested,
        network_hint="" if answer.network is None else answer.network.hint,
        acquire_source=answer.acquire_source,
        acquire_detail=answer.acquire_detail,
    )


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of output; `gap_bytes` were written before it and not kept."""

    seq: int
    stream: Literal["stdout", "stderr", "pty"]
    data: bytes
    text: str
    """`data` decoded; a character cut in two by a chunk's end comes whole in the next one."""
    gap_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Transfer:
    """What an upload or download moved. `skipped` names what was left out, with the reason."""

    path: str
    files: int
    bytes: int
    skipped: tuple[str, ...] = ()


def signal_number(signal: int | str) -> int:
    """Return the number of 15, "TERM" or "SIGTERM"; ValueError for an unknown name."""
    if isinstance(signal, int):
        return int(signal)
    name = signal.upper()
    name = name if name.startswith("SIG") else f"SIG{name}"
    try:
        return int(signals.Signals[name])
    except KeyError:
        raise ValueError(f"no signal is called {signal!r}") from None
