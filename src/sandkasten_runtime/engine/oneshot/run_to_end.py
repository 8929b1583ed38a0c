"""One run on a backend that cannot keep a sandbox (`ports.RunsOnce`).

Files, the command and the first page of the listing are one script, which our runner plays inside;
artifacts are read by further scripts in the files that the run left. Deadlines, caps and the end of
everything the code started are the runner's, as in every sandbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.errors import NotFound, ProtocolViolation, SandkastenError
from sandkasten.model.files.file_entries import FileContent, Listing
from sandkasten.model.sandbox.cell_spec import WORKSPACE, base_environment
from sandkasten.model.sandbox.limits import MIB
from sandkasten.model.sandbox.oneshot_values import RunOrder
from sandkasten.ports import UNTRACED, RunsOnce, backend_part
from sandkasten_runtime.engine.commands.exec_results import GRACE_S, start_fields
from sandkasten_runtime.engine.storage.sandbox_files import file_entry
from sandkasten_runtime.wire.json_bodies import to_bytes_json
from sandkasten_runtime.wire.messages import decode_entry, decode_exec, decode_page
from sandkasten_runtime.wire.script import Answers, Script

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.commands.command import Command
    from sandkasten.model.commands.exec_values import ChunkReader, ExecRequest, ExecResult
    from sandkasten.model.files.file_entries import FileEntry
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.limits import Unenforced
    from sandkasten.ports import Tracing
    from sandkasten_runtime.engine.commands.exec_to_end import ExecToEnd
    from sandkasten_runtime.engine.lifecycle.planner import SandboxPlan
    from sandkasten_runtime.wire.call import OutputChunk
    from sandkasten_runtime.wire.messages import ExecReply

# Streams that are open at once while files are written; each has up to a megabyte on its way.
_FILES_AT_ONCE: Final = 8
# Bytes of artifacts that one script reads.
_READ_AT_ONCE: Final = 32 * MIB
# For what is not output: entries of files, the listing, the end of the command.
_OTHER_ANSWERS: Final = 8 * MIB
# A chunk of one byte is a frame of 27 bytes.
_BYTES_OF_A_BYTE: Final = 27
_PAGE: Final = 5000
# A script without a command of the caller: listings and reads of a bounded size.
_READING_S: Final = 60.0
_WRITING_S: Final = 30.0


class RunToEnd:
    """One run. `files` are those that it left, for artifacts."""

    def __init__(
        self,
        record: Record,
        plan: SandboxPlan,
        commands: ExecToEnd,
        tracing: Tracing = UNTRACED,
    ) -> None:
        self._record = record
        self._plan = plan
        self._commands = commands
        self._tracing = tracing
        self._unenforced: tuple[Unenforced, ...] = ()
        self.files = RunFiles(self)
        self._state = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what the caller should know: the limits that did not hold."""
        return tuple(f"{entry.limit} is not limited: {entry.reason}" for entry in self._unenforced)

    async def execute(
        self,
        request: ExecRequest,
        files: Mapping[str, bytes],
        show: ChunkReader | None,
        *,
        listed: bool,
        code: bytes | None = None,
    ) -> ExecResult:
        """Write the files, run the command to its end, and list the workspace if asked to."""

        async def exchange(
            exec_id: str, command: Command
        ) -> tuple[ExecReply, Sequence[OutputChunk]]:
            return await self._exchange(exec_id, command, files, listed=listed)

        return await self._commands.run(self._record, request, exchange, show, code)

    async def _exchange(
        self, exec_id: str, command: Command, files: Mapping[str, bytes], *, listed: bool
    ) -> tuple[ExecReply, Sequence[OutputChunk]]:
        script = Script()
        with self._tracing.span("sandbox.prepare_files", {"sandbox.id": self._record.id}) as span:
            span.set({"sandbox.files": len(files)})
            written = _write(script, files)
        fields = start_fields(exec_id, command, follow=False)
        env = {**base_environment(self._plan.spec), **command.env}
        fields["env"] = {name: to_bytes_json(value) for name, value in env.items()}
        started = script.call("exec.start", fields)
        script.wait()
        if command.stdin is not None:
            script.call("exec.stdin", {"exec_id": exec_id, "close": True}, command.stdin)
        script.call("exec.wait", {"exec_id": exec_id})
        script.wait()
        output = script.call("exec.output", {"exec_id": exec_id})
        page = _list(script, None) if listed else 0
        output_cap = command.stdout_cap + command.stderr_cap
        answers = await self.ask(
            script,
            seconds=command.timeout_s + GRACE_S + _WRITING_S,
            most=_OTHER_ANSWERS + _BYTES_OF_A_BYTE * output_cap,
        )
        for stream in (*written, started):
            answers[stream].body()
        ended = answers[output]
        reply = decode_exec(ended.body())
        if not reply.ended:
            raise ProtocolViolation("the command has no end in the answers of its runner")
        if listed:
            self.files.first = answers[page].body()
        return reply, ended.chunks

    async def ask(self, script: Script, *, seconds: float, most: int) -> Answers:
        """Play a script after those before. Raise BackendUnavailable, or SandboxLost."""
        order = RunOrder(
            sandbox_id=self._record.id,
            spec=self._plan.spec,
            script=script.parts,
            seconds=seconds,
            max_answer_bytes=most,
            after=self._state,
        )
        backend = await backend_part(self._plan.backend, RunsOnce)
        outcome = await backend.run(order)
        self._state, self._unenforced = outcome.state, outcome.unenforced
        return Answers(outcome.answers)


class RunFiles:
    """Implements `artifacts.WorkspaceFiles` for the files that a run left."""

    def __init__(self, run: RunToEnd) -> None:
        self._run = run
        self.first: dict[str, object] | None = None
        """The first page of the listing, as the runner sent it."""
        self._contents: dict[str, FileContent | SandkastenError] = {}

    async def list(
        self,
        sandbox_id: str,
        path: str = WORKSPACE,
        *,
        recursive: bool = False,
        limit: int = _PAGE,
        cursor: str | None = None,
    ) -> Listing:
        body, self.first = (self.first, None) if cursor is None else (None, self.first)
        if body is None:
            script = Script()
            stream = _list(script, cursor)
            answers = await self._run.ask(script, seconds=_READING_S, most=_OTHER_ANSWERS)
            body = answers[stream].body()
        page = decode_page(body)
        return Listing(tuple(file_entry(entry) for entry in page.entries), page.next)

    async def prefetch(self, entries: Sequence[FileEntry], limit: int) -> None:
        """Read these files with few scripts, at most `limit` bytes of each."""
        batch: list[FileEntry] = []
        for entry in entries:
            if batch and sum(file.size for file in (*batch, entry)) > _READ_AT_ONCE:
                await self._fetch(batch, limit)
                batch = []
            batch.append(entry)
        if batch:
            await self._fetch(batch, limit)

    async def _fetch(self, batch: Sequence[FileEntry], limit: int) -> None:
        script, streams = Script(), list[int]()
        for number, entry in enumerate(batch):
            if number and number % _FILES_AT_ONCE == 0:
                script.wait()
            fields = {"path": to_bytes_json(entry.path), "limit": limit}
            streams.append(script.call("fs.read", fields))
        most = _OTHER_ANSWERS + 2 * sum(min(entry.size, limit) for entry in batch)
        answers = await self._run.ask(script, seconds=_READING_S, most=most)
        for entry, stream in zip(batch, streams, strict=True):
            answer = answers[stream]
            try:
                answer.body()
                size = decode_entry(answer.events.get("open", {}).get("entry") or {}).size
            except SandkastenError as exc:
                self._contents[entry.path] = exc
                continue
            data = bytes(answer.data)
            self._contents[entry.path] = FileContent(entry.path, data, size, len(data) < size)

    async def read(self, sandbox_id: str, path: str, *, limit: int | None = None) -> FileContent:
        content = self._contents.pop(path, None)
        if content is None:
            raise NotFound(f"{path} was not fetched", hint="it is too large")
        if isinstance(content, SandkastenError):
            raise content
        return content


def _write(script: Script, files: Mapping[str, bytes]) -> list[int]:
    streams = []
    for number, (path, data) in enumerate(files.items()):
        if number and number % _FILES_AT_ONCE == 0:
            script.wait()
        fields = {"path": to_bytes_json(path), "size": len(data), "within": [WORKSPACE]}
        streams.append(script.call("fs.write", fields, data))
    script.wait()
    return streams


def _list(script: Script, cursor: str | None) -> int:
    fields: dict[str, object] = {"path": WORKSPACE, "recursive": True, "limit": _PAGE}
    if cursor is not None:
        fields["cursor"] = to_bytes_json(cursor)
    return script.call("fs.list", fields)
