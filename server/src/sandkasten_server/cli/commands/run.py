"""`run`: run code once in a new sandbox."""

from __future__ import annotations

import shlex
import sys
from dataclasses import field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import FileTrouble
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.files.globs import compile_globs
from sandkasten.model.language_runtimes import RUNTIME_OF_SUFFIX
from sandkasten_server.cli.create_progress import create_progress
from sandkasten_server.cli.exit_status import EXIT_INTERRUPTED, UsageError, status_of
from sandkasten_server.cli.output import (
    counted,
    put_json,
    say,
    tell,
    tell_network,
    visible,
    write_chunk,
)
from sandkasten_server.cli.state import State, go

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.client.results import RunResult
    from sandkasten.model.commands.exec_values import Chunk
    from sandkasten.model.sandbox.oneshot_values import Artifact, StoredKey
    from sandkasten_server.cli.begun_command import BegunCommand

STORED: Final = "store:"
"""The prefix of a key of the file store, in place of a local path."""


@dataclass(frozen=True, slots=True)
class Job:
    """The arguments of `run`."""

    code: str | None
    words: tuple[str, ...]
    runtime: str | None = None
    timeout_s: float | None = None
    files: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    out: str = "."
    stdin: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the sandbox, as the client's keyword arguments."""
    own_options: Mapping[str, str] = field(default_factory=dict)
    """The options of `run`, which an argument of the code may be mistaken for."""


@dataclass(frozen=True, slots=True)
class Program:
    code: str | bytes
    args: tuple[str, ...]
    runtime: str


def run(state: State, job: Job) -> int:
    """Run the job, print its result and return the exit status."""
    try:
        # Before the event loop starts: these reads block, and Ctrl-C must end them.
        program = program_of(job)
        files = dict(_file(word) for word in job.files)
        stdin = sys.stdin.buffer.read() if job.stdin else None
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    return _end(state, job, go(_run(state, job, program, files, stdin)))


def finish(state: State, job: Job, started: BegunCommand) -> int:
    """Show how the job ended that another program has begun, and return the exit status."""
    started.connect(state)
    return _end(state, job, started.run_result())


def _end(state: State, job: Job, result: RunResult) -> int:
    show(result, job, as_json=state.json)
    return status_of(result.exit_code, result.signal, timed_out=result.timed_out)


async def _run(
    state: State,
    job: Job,
    program: Program,
    files: Mapping[str, bytes | StoredKey],
    stdin: bytes | None,
) -> RunResult:
    from sandkasten.client.results import run_result_of
    from sandkasten.client.server.server_pool import connect
    from sandkasten.model.request_spellings import sandbox_options
    from sandkasten.model.sandbox.oneshot_values import RunRequest

    request = RunRequest(
        code=program.code,
        runtime=program.runtime,
        args=program.args,
        files=files,
        stdin=stdin,
        timeout_seconds=job.timeout_s,
        artifacts=job.artifacts,
        options=sandbox_options({**job.options, "backend": state.backend}),
    )
    async with create_progress(state, job.options) as created:

        async def show(chunk: Chunk) -> None:
            created()
            write_chunk(chunk.source, chunk.data, chunk.gap_bytes)

        transport = await connect(state.place)
        return run_result_of(await transport.run(request, show=None if state.json else show))


def program_of(job: Job) -> Program:
    """Return the code and its arguments: from -c, from a file, or from stdin for `-`."""
    if job.code is not None:
        return Program(job.code, _arguments("-c CODE", job), job.runtime or "python")
    if not job.words:
        raise UsageError("no code to run", hint="pass -c CODE, a FILE, or - for stdin")
    name = job.words[0]
    if name.startswith("-") and name != "-":
        # The parser passes it on, because it may follow -c CODE.
        from sandkasten_server.cli.usage_errors import no_option

        raise no_option("run", name, job.own_options, f"a file of that name is ./{name[:80]}")
    args = _arguments(name, job)
    if name == "-":
        return Program(sys.stdin.buffer.read(), args, job.runtime or "python")
    runtime = job.runtime or RUNTIME_OF_SUFFIX.get(Path(name).suffix, "python")
    return Program(_bytes_of(Path(name)), args, runtime)


def _arguments(code: str, job: Job) -> tuple[str, ...]:
    """Return the arguments of the code; UsageError for one that may be meant for us."""
    words = job.words if job.code is not None else job.words[1:]
    if words[:1] == ("--",):
        return words[1:]
    for word in words:
        if word.partition("=")[0] in job.own_options:
            raise UsageError(
                f"{word[:40]} after {code[:80]} is ambiguous: it is also an option of run",
                hint=f"an option of run goes first: sandkasten run {word[:40]} … {code[:80]}; "
                f"an argument of the code goes after --: sandkasten run {code[:80]} -- "
                f"{word[:40]} …",
            )
    return words


def _file(word: str) -> tuple[str, bytes | StoredKey]:
    from sandkasten.model.sandbox.oneshot_values import StoredKey

    if word.startswith(STORED):
        rest = word.removeprefix(STORED)
        # A key may contain colons; then it needs a DEST.
        key, _, inside = rest.rpartition(":") if ":" in rest else (rest, "", "")
        return inside or key.rpartition("/")[2], StoredKey(key)
    local, colon, inside = word.partition(":")
    path = Path(local)
    return (inside if colon and inside else path.name), _bytes_of(path)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise FileTrouble(
            f"reading {path} failed: {exc.strerror or exc}", hint="check the path"
        ) from exc


def _allow_flags(rules: Sequence[str]) -> str:
    """Return the options to add to the command: the sandbox is gone."""
    return shlex.join(word for rule in rules for word in ("--allow", rule))


def show(result: RunResult, job: Job, *, as_json: bool) -> None:
    """Print what the output does not show, and save the artifacts."""
    if as_json:
        put_json(result.as_dict())
    for warning in result.warnings:
        tell("warning", warning)
    if result.why is not None and not as_json:
        tell("error", result.why.message)
        tell("hint", result.why.hint)
    if not as_json:
        tell_network(result.refused, result.suggested, result.network_hint, _allow_flags)
    if job.artifacts:
        for artifact in result.artifacts:
            _save(artifact, Path(job.out), quiet=as_json)
        for glob in compile_globs(job.artifacts):
            if not any(glob.matches(artifact.path) for artifact in result.artifacts):
                tell("warning", f"no file matches --artifact {visible(glob.text)}")


def _save(artifact: Artifact, out: Path, *, quiet: bool) -> None:
    """Write artifacts. The code chose their names, so paths outside `out` are skipped."""
    parts = PurePosixPath(artifact.path).parts
    if artifact.data is None:
        tell("warning", f"{visible(artifact.path)} was left out: {artifact.omitted_reason}")
        return
    if not parts or artifact.path.startswith("/") or ".." in parts:
        tell("warning", f"{visible(artifact.path)} was left out: its path is outside the directory")
        return
    from sandkasten.client.transfer.tar_archive import write_below

    try:
        out.mkdir(parents=True, exist_ok=True)
        write_below(out, list(parts), artifact.data)
    except OSError as exc:
        raise FileTrouble(
            f"writing {visible(artifact.path)} below {out} failed: {exc.strerror or exc}",
            hint="check free space and permissions",
        ) from exc
    if not quiet:
        say(f"wrote {out / visible(artifact.path)} ({counted(artifact.size_bytes, 'byte')})")
