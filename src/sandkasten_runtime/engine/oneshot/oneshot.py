"""One-shot compute: a sandbox for one piece of code, gone when the result is there.

Everything that can be refused is refused before anything is made. A failure of the code is a result
with `ok` false; a missing interpreter raises CommandNotFound.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from sandkasten.errors import (
    Cancelled,
    CommandNotFound,
    InvalidRequest,
    PayloadTooLarge,
    SandkastenError,
    UnsupportedByBackend,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.commands.command import checked_command
from sandkasten.model.commands.exec_values import ExecRequest, ExecResult
from sandkasten.model.environment import text_bytes
from sandkasten.model.files.globs import Glob, compile_globs
from sandkasten.model.files.sandbox_paths import workspace_member
from sandkasten.model.language_runtimes import RUNTIME_NAMES, Runtime, runtime_named
from sandkasten.model.numbers import number
from sandkasten.model.runs.run_values import new_run_id
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten.model.sandbox.limit_names import public_limits
from sandkasten.model.sandbox.limits import MIB, Limits
from sandkasten.model.sandbox.oneshot_values import (
    Artifact,
    RunRequest,
    RunResult,
    StoredKey,
    oneshot_timeout,
)
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten.model.spelling import did_you_mean, shown
from sandkasten.ports import UNTRACED, RunsOnce, backend_part
from sandkasten_runtime.engine.commands.exec_spans import output_attributes, trace_result
from sandkasten_runtime.engine.oneshot.artifacts import collect_artifacts
from sandkasten_runtime.engine.oneshot.run_to_end import RunToEnd
from sandkasten_runtime.engine.placement.backend_choice import asked_of
from sandkasten_runtime.engine.storage.stage_publish import verified

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.access.tenancy import TenantQuota
    from sandkasten.model.commands.exec_values import ChunkReader
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.sandbox_options import SandboxOptions
    from sandkasten.ports import EventSink, FileStore, Sites, Span, Tracing
    from sandkasten_runtime.engine.commands.execution import Execution
    from sandkasten_runtime.engine.lifecycle.planner import Planner, SandboxPlan
    from sandkasten_runtime.engine.lifecycle.sandboxes import Sandboxes
    from sandkasten_runtime.engine.placement.backend_choice import Chosen
    from sandkasten_runtime.engine.storage.sandbox_files import FileOperations

MAX_CODE_BYTES = 10_000_000
MAX_FILES = 1000
MAX_FILES_BYTES = 256 * MIB
# A run may live this much longer than its code: files in, artifacts out.
LEASE_MARGIN_S = 300.0
# A file up to this size is sent together with its end, so nothing can come between.
AT_ONCE_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class _Job:
    name: str
    runtime: Runtime
    main: str
    """Path of the code itself, relative to the workspace."""
    kept: bool
    """Whether the workspace outlives the run, so that the code must be removed from it."""
    files: dict[str, bytes]
    keys: dict[str, str]
    """Paths of files that come from the store, with their keys."""
    globs: tuple[Glob, ...]
    exec: ExecRequest
    code: bytes


class OneShot:
    def __init__(
        self,
        planner: Planner,
        sandboxes: Sandboxes,
        execution: Execution,
        files: FileOperations,
        sites: Sites,
        events: EventSink | None = None,
        tracing: Tracing = UNTRACED,
        stored: FileStore | None = None,
    ) -> None:
        self._stored = stored
        self._tracing = tracing
        self._sites = sites
        self._planner = planner
        self._sandboxes = sandboxes
        self._execution = execution
        self._files = files
        self._events = events

    async def run(
        self,
        request: RunRequest,
        quota: TenantQuota | None = None,
        show: ChunkReader | None = None,
    ) -> RunResult:
        """Run it to its end; `show` receives the output as it comes."""
        with self._tracing.span("sandbox_run", join=True) as span:
            span.set({"sandbox.runtime": request.runtime})
            span.content("sandbox.input", request.code)
            return await self._run(request, quota, show, span)

    async def _run(
        self,
        request: RunRequest,
        quota: TenantQuota | None,
        show: ChunkReader | None,
        span: Span,
    ) -> RunResult:
        job = _checked(request)
        stored_bytes = await self._stored_bytes(request.tenant, job)

        async def connect(chosen: Chosen) -> tuple[SandboxPlan, _RunEvents, Record | None]:
            plan = await self._plan(request, job, chosen)
            _check_room(stored_bytes, plan)
            events = _RunEvents(self._events, request, job.name, job.exec.timeout_seconds, plan)
            span.set(
                {
                    "sandbox.image": plan.spec.image.name,
                    "sandbox.backend": plan.backend.name,
                    "sandbox.timeout_seconds": events.timeout_s,
                    "sandbox.run_id": events.run_id,
                }
            )
            try:
                with self._tracing.span("sandbox.connect") as connecting:
                    if plan.backend.capabilities.run_once:
                        # Afterwards the code may have run, and is not sent to another backend.
                        with asked_of(plan.backend.name):
                            await (await backend_part(plan.backend, RunsOnce)).reach(plan.spec)
                        return plan, events, None
                    record = await self._sandboxes.acquire(plan, quota)
                    pooled = record.acquired == "pool"
                    connecting.set({"sandbox.from_pool": pooled, "sandbox.id": record.id})
            except BaseException as exc:
                events.failed(exc)
                raise
            return plan, events, record

        create_request = _create_request(request, job)
        plan, events, record = await self._planner.choice.on_available(create_request, connect)
        try:
            if record is None:
                return await self._run_once(plan, job, quota, events, show, span)
            span.set({"sandbox.id": record.id})
            try:
                await self._stage(record, job)
                return await self._compute(record, job, plan, events, show, span)
            finally:
                if job.kept:
                    await self._take_back(record, job)
                await self._remove(record)
                self._sandboxes.pool.refill()
        except BaseException as exc:
            events.failed(exc)
            raise

    async def _run_once(
        self,
        plan: SandboxPlan,
        job: _Job,
        quota: TenantQuota | None,
        events: _RunEvents,
        show: ChunkReader | None,
        span: Span,
    ) -> RunResult:
        entries = self._sandboxes.entries
        async with entries.recorded(plan, quota, self._sandboxes) as (record, granted):
            span.set({"sandbox.id": record.id})
            await self._planner.check_present(granted)
            job = replace(job, files={**job.files, **await self._contents(record.tenant, job)})
            once = RunToEnd(record, granted, self._execution.to_end, self._tracing)
            return await self._compute(record, job, granted, events, show, span, once)

    async def check(self, request: RunRequest) -> None:
        """Raise what `run` would raise before it makes anything."""
        job = _checked(request)
        create_request = _create_request(request, job)
        plan = partial(self._plan, request, job)
        await self._planner.choice.on_available(create_request, plan, trial=True)

    async def _stored_bytes(self, tenant: str, job: _Job) -> int:
        """Return the size of the stored files. Raise FileNotFound for a key of another tenant."""
        if not job.keys:
            return 0
        store = self._file_store()
        rows = [await store.get(tenant, key) for key in job.keys.values()]
        return sum(row.size_bytes for row in rows)

    def _file_store(self) -> FileStore:
        if self._stored is None:
            raise UnsupportedByBackend(
                "no file store is available",
                hint="pass the content of the file, or run against a daemon",
            )
        return self._stored

    async def _stage(self, record: Record, job: _Job) -> None:
        """Stream stored files into the sandbox: they are never whole in memory."""
        if not job.keys:
            return
        store = self._file_store()
        with self._tracing.span("sandbox.prepare_files", {"sandbox.id": record.id}) as span:
            span.set({"sandbox.files": len(job.keys)})
            for path, key in job.keys.items():
                async with store.read(record.tenant, key) as (row, pieces):
                    await self._files.write(record.id, path, verified(row, pieces))

    async def _contents(self, tenant: str, job: _Job) -> dict[str, bytes]:
        """Return stored files for a backend that gets everything at once."""
        files: dict[str, bytes] = {}
        remaining = MAX_FILES_BYTES - sum(map(len, job.files.values()))
        for path, key in job.keys.items():
            async with self._file_store().read(tenant, key) as (row, pieces):
                remaining -= row.size_bytes
                if remaining < 0:
                    raise _too_many(len(job.files) + len(job.keys))
                files[path] = b"".join([piece async for piece in verified(row, pieces)])
        return files

    async def find_image(self, options: SandboxOptions, runtime: str) -> bool:
        """Return whether the image of a run is here; see `Planner.find_image`."""
        create_request = CreateRequest(options, runtime_image=_runtime(runtime).image)
        return await self._planner.find_image(create_request)

    async def _plan(self, request: RunRequest, job: _Job, chosen: Chosen) -> SandboxPlan:
        plan = await self._planner.plan(
            _create_request(request, job),
            sites=self._sites,
            chosen=chosen,
            once=True,
        )
        limits = plan.spec.limits
        checked_command(job.exec, limits, "sh")
        lifetime_s = oneshot_timeout(job.exec.timeout_seconds, limits) + LEASE_MARGIN_S
        return replace(
            plan,
            runtime=job.name,
            lease=replace(
                plan.lease,
                lifetime_s=lifetime_s,
                # Between two requests nothing runs, so a shorter idle timeout could end the
                # sandbox.
                idle_timeout_s=min(plan.lease.idle_timeout_s, LEASE_MARGIN_S),
            ),
        )

    async def _compute(
        self,
        record: Record,
        job: _Job,
        plan: SandboxPlan,
        events: _RunEvents,
        show: ChunkReader | None,
        span: Span,
        once: RunToEnd | None = None,
    ) -> RunResult:
        try:
            if once is not None:
                result = await once.execute(
                    job.exec, job.files, show, listed=bool(job.globs), code=job.code
                )
            else:
                result = await self._write_and_run(record, job, plan, show)
        except CommandNotFound as exc:
            raise CommandNotFound(
                f"there is no {job.runtime.program} in image {record.image}",
                hint=job.runtime.remedy
                if plan.spec.image.kind == "host"
                else f"name an image that has it, such as {job.runtime.image}",
                runtime=job.name,
            ) from exc
        with self._tracing.span("sandbox.collect_outputs") as collecting:
            collecting.set(output_attributes(result))
        artifacts: tuple[Artifact, ...] = ()
        warnings = record.warnings + (once.warnings if once is not None else ())
        with self._tracing.span("sandbox.collect_artifacts") as collecting:
            if job.globs and result.status != "lost":
                files = self._files if once is None else once.files
                collected = await collect_artifacts(files, record, job.globs, leave_out=job.main)
                artifacts = collected.artifacts
                warnings += collected.warnings
            collecting.set({"sandbox.artifacts_count": len(artifacts)})
        answer = _answer(record, job, result, artifacts, warnings)
        events.finished(answer, result)
        span.set({"sandbox.artifacts_count": len(artifacts)})
        trace_result(span, result)
        return answer

    async def _write_and_run(
        self, record: Record, job: _Job, plan: SandboxPlan, show: ChunkReader | None
    ) -> ExecResult:
        sandbox_id, files = record.id, job.files
        tasks: list[asyncio.Future[None]] = []
        if len(files) == 1 and sum(map(len, files.values())) <= AT_ONCE_BYTES:
            tasks.append(asyncio.ensure_future(self._write(sandbox_id, job)))
        else:
            await self._write(sandbox_id, job)
        held = job.runtime.held if record.acquired == "pool" else None
        running = asyncio.ensure_future(
            self._execution.run(sandbox_id, job.exec, show, held=held, code=job.code)
        )
        try:
            # One pass of the loop sends the file and then the command: the runner finishes a write
            # before it handles what follows, and without its file no code can run.
            await asyncio.sleep(0)
            self._sandboxes.pool.refill_during_run(plan)
            for writing in tasks:
                await writing
            return await running
        except BaseException:
            running.cancel()
            for writing in tasks:
                writing.cancel()
            await asyncio.gather(*tasks, running, return_exceptions=True)
            raise

    async def _write(self, sandbox_id: str, job: _Job) -> None:
        size = sum(map(len, job.files.values()))
        with self._tracing.span("sandbox.prepare_files", {"sandbox.id": sandbox_id}) as span:
            span.set({"sandbox.files": len(job.files), "sandbox.bytes": size})
            await self._write_all(sandbox_id, job)

    async def _write_all(self, sandbox_id: str, job: _Job) -> None:
        # What goes with the sandbox need not be on disk first.
        files, flush = job.files, job.kept
        if len(files) == 1:
            for path, data in files.items():
                await self._files.write(sandbox_id, path, data, flush=flush)
            return
        gate = asyncio.Semaphore(8)

        async def write(path: str, data: bytes) -> None:
            async with gate:
                await self._files.write(sandbox_id, path, data, flush=flush)

        try:
            async with asyncio.TaskGroup() as group:
                for path, data in files.items():
                    group.create_task(write(path, data))
        except BaseExceptionGroup as several:
            raise _first(several) from several

    async def _take_back(self, record: Record, job: _Job) -> None:
        """Remove the code: the caller asked only for what it writes."""
        with suppress(SandkastenError):
            await self._files.remove(record.id, f"{WORKSPACE}/{job.main}", missing_ok=True)

    async def _remove(self, record: Record) -> None:
        try:
            await self._sandboxes.destroy(record.id)
        except SandkastenError:
            # The result is valid; the row is marked, and the reaper and the lease do the rest.
            return


class _RunEvents:
    """The two log events of one run, under one id; the second also for a run that failed or was
    cancelled.
    """

    def __init__(
        self,
        events: EventSink | None,
        request: RunRequest,
        runtime: str,
        timeout_s: float | None,
        plan: SandboxPlan,
    ) -> None:
        self._events = events
        self.run_id = new_run_id()
        self.timeout_s = oneshot_timeout(timeout_s, plan.spec.limits)
        self._about: dict[str, str | int | float | bool | None] = {
            "run": self.run_id,
            "agent_run": request.agent_run_id,
            "tenant": plan.tenant,
            "runtime": runtime,
            "image": plan.spec.image.name,
            "backend": plan.backend.name,
        }
        self._over = False
        self._emit("sandbox_run_started", {"timeout_seconds": self.timeout_s})

    def finished(self, answer: RunResult, result: ExecResult) -> None:
        self._over = True
        self._emit(
            "sandbox_run_finished",
            {
                "sandbox": answer.sandbox_id,
                "ok": answer.ok,
                "status": result.status,
                "exit_code": answer.exit_code,
                "duration_ms": answer.duration_ms,
                "stdout_bytes": result.stdout_bytes,
                "stderr_bytes": result.stderr_bytes,
                "artifacts": len(answer.artifacts),
                "error": None,
            },
        )

    def failed(self, exc: BaseException) -> None:
        if self._over:
            return
        code = exc.code if isinstance(exc, SandkastenError) else type(exc).__name__
        error = Cancelled.code if isinstance(exc, asyncio.CancelledError) else code
        self._emit("sandbox_run_finished", {"ok": False, "exit_code": None, "error": error})

    def _emit(self, event: str, fields: Mapping[str, str | int | float | bool | None]) -> None:
        if self._events is not None:
            self._events.emit(event, {**self._about, **fields})


def _create_request(request: RunRequest, job: _Job) -> CreateRequest:
    labels = {**request.options.labels, "sandkasten.oneshot": job.name}
    return CreateRequest(
        replace(request.options, labels=labels),
        tenant=request.tenant,
        key_id=request.key_id,
        agent=request.agent,
        runtime_image=job.runtime.image,
    )


def _runtime(name: str) -> Runtime:
    runtime = runtime_named(name)
    if runtime is None:
        raise InvalidRequest(
            f"there is no runtime named {shown(str(name))}",
            hint=did_you_mean(str(name), RUNTIME_NAMES),
            field="runtime",
        )
    return runtime


def _checked(request: RunRequest) -> _Job:
    runtime = _runtime(request.runtime)
    code = _bytes_of("code", request.code)
    if len(code) > MAX_CODE_BYTES:
        raise PayloadTooLarge(
            f"the code is {len(code)} bytes long",
            hint=f"at most {MAX_CODE_BYTES}; pass data as a file and let the code read it",
            limit=MAX_CODE_BYTES,
        )
    files: dict[str, bytes] = {}
    keys: dict[str, str] = {}
    for path, data in request.files.items():
        if isinstance(data, StoredKey):
            keys[workspace_member(path)] = data.key
        else:
            files[workspace_member(path)] = _bytes_of(path, data)
    count = len(files) + len(keys)
    if count > MAX_FILES or sum(map(len, files.values())) > MAX_FILES_BYTES:
        raise _too_many(count)
    keeps_workspace = request.options.workspace_id is not None
    # In a named workspace the plain name may be taken.
    code_name = f".{secrets.token_hex(6)}-{runtime.main}" if keeps_workspace else runtime.main
    main = f"{WORKSPACE}/{code_name}"
    if main in files or main in keys:
        raise InvalidRequest(
            f"{code_name} is the name of the code file itself",
            hint="rename that file",
            field="files",
        )
    files[main] = code
    timeout_s = request.timeout_seconds
    if timeout_s is not None:
        timeout_s = number("timeout_seconds", timeout_s, low=1, high=3600)
    command = (runtime.program, *runtime.once, main, *request.args)
    for part in request.args:
        text_bytes("an argument", part)
    return _Job(
        name=request.runtime,
        runtime=runtime,
        main=code_name,
        kept=keeps_workspace,
        files=files,
        keys=keys,
        globs=compile_globs(request.artifacts),
        exec=ExecRequest(command, stdin=request.stdin, timeout_seconds=timeout_s),
        code=code,
    )


def _too_many(count: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"{count} files are too many or too large for one run",
        hint=f"at most {MAX_FILES} files and {MAX_FILES_BYTES} bytes; "
        "open a sandbox and upload an archive",
        limit=MAX_FILES,
    )


def _check_room(size: int, plan: SandboxPlan) -> None:
    """Raise PayloadTooLarge if stored files do not fit into the workspace."""
    most = plan.spec.limits.workspace_bytes
    if size > most:
        raise PayloadTooLarge(
            f"the stored files of this run have {size} bytes, and its workspace {most}",
            hint="ask for a larger workspace (limits.workspace_mb), or for fewer files",
            limit=most,
        )


def _bytes_of(what: str, value: str | bytes) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str):
        raise InvalidRequest(f"{what[:80]} must be str or bytes", hint="encode it first")
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as exc:
        raise InvalidRequest(
            f"{what[:80]} contains an unpaired surrogate", hint="send valid Unicode or bytes"
        ) from exc


def _answer(
    record: Record,
    job: _Job,
    result: ExecResult,
    artifacts: tuple[Artifact, ...],
    warnings: tuple[str, ...],
) -> RunResult:
    ok = result.status == "completed" and result.exit_code == 0
    return RunResult(
        ok=ok,
        runtime=job.name,
        exit_code=result.exit_code,
        signal=result.signal,
        duration_ms=result.duration_ms,
        stdout=result.stdout,
        stderr=result.stderr,
        output=result.output,
        truncated=result.truncated,
        timed_out=result.timed_out,
        oom_killed=result.oom_killed,
        artifacts=artifacts,
        limits=_caps(record.limits, job),
        image=record.image,
        sandbox_id=record.id,
        backend=record.backend,
        error=None if ok else _error(result),
        why=result.why,
        warnings=warnings,
        network=result.network,
        acquire_source="pool" if record.acquired == "pool" else "cold",
        acquire_detail=record.acquire_detail,
    )


def _caps(limits: Limits, job: _Job) -> dict[str, int | float]:
    caps = public_limits(limits)
    timeout_s = oneshot_timeout(job.exec.timeout_seconds, limits)
    return {"timeout_seconds": timeout_s, **caps}


def _error(result: ExecResult) -> str:
    if result.why is not None:
        return result.why.message
    if result.exit_code is not None:
        return f"the code exited with status {result.exit_code}"
    return "the code did not end normally"


def _first(several: BaseExceptionGroup) -> BaseException:
    """Return one of the errors: the files take the same way, so they fail for the same reason."""
    error: BaseException = several
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
