"""Implementation of the agent tools: a name and arguments in, an answer out.

A failure is an answer with `ok` false and the error body; `call` raises nothing except on
cancellation. Only the context decides which run a call belongs to, never the arguments of a model.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidRequest, NotFound, SandkastenError
from sandkasten.model.request_spellings import agreed
from sandkasten.model.spelling import did_you_mean, shown
from sandkasten.ports.spans import CallingAgent, caller_agent
from sandkasten_tools.calls import tool_answers
from sandkasten_tools.calls.call_sandboxes import CallSandboxes, FinishResult
from sandkasten_tools.calls.code_tool import CodeTool
from sandkasten_tools.calls.exec_tools import ExecTools
from sandkasten_tools.calls.file_tools import FileTools, stored_files_denied
from sandkasten_tools.calls.oneshot_tool import OneshotTool, with_file_mapping
from sandkasten_tools.calls.policy_check import check_sandbox
from sandkasten_tools.calls.tool_arguments import checked
from sandkasten_tools.calls.tool_requests import compute_image, runtime_for, session_image
from sandkasten_tools.calls.tool_schemas import TOOLS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from sandkasten.model.runs.session_key import Namespace
    from sandkasten.model.sandbox.session_joins import SessionShape
    from sandkasten_runtime.engine.engine import Engine
    from sandkasten_runtime.engine.storage.stage_publish import StagePublish
    from sandkasten_tools.calls.agent_sandbox import AgentSandbox
    from sandkasten_tools.calls.call_sandboxes import CallSandbox
    from sandkasten_tools.calls.run_context import RunContext
    from sandkasten_tools.calls.tool_answers import Answer
    from sandkasten_tools.calls.tool_schemas import ToolSpec

    Verb = Callable[[Mapping[str, Any], RunContext, CallSandbox], Awaitable[Answer]]

_log = logging.getLogger("sandkasten.agents.tools")
_OF_THE_STORE: Final = ("sandbox_stage_file", "sandbox_publish_file")


class Toolbox:
    def __init__(
        self,
        engine: Engine,
        filing: StagePublish | None = None,
        max_sandboxes: int = 32,
    ) -> None:
        """Without `filing` there is no file store, and its two tools are not offered.
        `max_sandboxes`: of one run or one client; a called agent is a separate run.
        """
        self._engine = engine
        self._has_store = filing is not None
        self._sessions = CallSandboxes(engine, max_sandboxes)
        self._running = OneshotTool(engine)
        self._files = FileTools(engine, filing)
        shells = ExecTools(engine)
        self._verbs: Mapping[str, Verb] = {
            "sandbox_exec": shells.run,
            "sandbox_exec_read": shells.read,
            "sandbox_exec_wait": shells.wait,
            "sandbox_code": CodeTool(engine).run,
            "sandbox_fs_write": self._files.write,
            "sandbox_fs_read": self._files.read,
            "sandbox_fs_list": self._files.list,
            "sandbox_fs_delete": self._files.delete,
            "sandbox_stage_file": self._files.stage,
            "sandbox_publish_file": self._files.publish,
        }

    def specs(self, sandbox: AgentSandbox | None) -> Sequence[ToolSpec]:
        """Return the tools of an agent with this sandbox; none without a sandbox."""
        if sandbox is None:
            return ()
        return tuple(
            spec
            for spec in TOOLS.values()
            if spec.mode == sandbox.mode and (self._has_store or spec.name not in _OF_THE_STORE)
        )

    async def call(self, name: str, arguments: object, context: RunContext) -> Answer:
        is_known = isinstance(name, str) and name in TOOLS
        with (
            _recorded(context),
            self._engine.tracing.span(name if is_known else "sandbox_unknown") as span,
        ):
            answer = await self._answer(name, arguments, context)
            span.set({"run.id": context.agent_run_id, "sandbox.id": answer.get("sandbox_id")})
            if tool_answers.failed(answer):
                span.fail(answer["error_code"], answer["error"])
            return answer

    async def _answer(self, name: str, arguments: object, context: RunContext) -> Answer:
        try:
            return await self._call(name, arguments, context)
        except SandkastenError as exc:
            return tool_answers.failure(exc)
        except Exception as exc:  # noqa: BLE001  (whatever it is, the loop of a model goes on)
            _log.exception("a tool failed unexpectedly", extra={"tool": str(name)[:80]})
            return tool_answers.failure(tool_answers.unforeseen(exc))

    async def prepare(self, context: RunContext) -> None:
        """Check the sandbox in advance, and fetch its image and packages, so that a missing or
        forbidden one ends a run before a model is called.
        """
        if context.sandbox.mode == "code":
            await self._sessions.check(context)
        else:
            await self._running.check(context)

    async def shape(self, context: RunContext) -> SessionShape:
        """Return what the session of an agent would have if this agent opened it."""
        return await self._sessions.shape(context)

    async def find_image(self, sandbox: AgentSandbox) -> bool:
        """Return whether the image of an agent is here; False if it has to be fetched first.

        Fetches nothing; raises what a run would raise.
        """
        check = self._engine.preflight.image
        if sandbox.mode == "code":
            return await check(replace(sandbox.options, image=session_image(sandbox)))
        options = replace(sandbox.options, image=compute_image(sandbox))
        return await check(options, runtime_for(sandbox))

    async def finish(
        self,
        namespace: Namespace,
        run_id: str,
        tenant: str | None = None,
        *,
        retain_from: float | None = None,
    ) -> FinishResult:
        """Destroy every sandbox of a run, by the ledger; failures are returned, not raised.

        With `retain_from`, the current time, those that are to be kept stay.
        """
        done = await self._sessions.finish(namespace, run_id, tenant, retain_from=retain_from)
        for the_id in done.destroyed:
            self._files.forget(the_id)
        return done

    async def _call(self, name: str, arguments: object, context: RunContext) -> Answer:
        spec = self._spec(name, context)
        if name == "sandbox_run" and isinstance(arguments, dict):
            arguments = with_file_mapping(arguments)
        valid_arguments = checked(spec, arguments)
        if name in _OF_THE_STORE and not context.files:
            raise stored_files_denied()
        check_sandbox(context.sandbox, self._engine.policy, operator=context.key_id is None)
        if name == "sandbox_run":
            return await self._running.run(valid_arguments, context)
        if name == "sandbox_open":
            return await self._open(valid_arguments, context)
        which = agreed(valid_arguments, "sandbox_id", "session_id")
        if name == "sandbox_close":
            return await self._close(valid_arguments, context, which)
        target = await self._sessions.resolve(context, which)
        try:
            answer = await self._verbs[name](valid_arguments, context, target)
        except SandkastenError as exc:
            if target.notice is None:
                raise
            # The notice explains the error and is sent once.
            return {**tool_answers.failure(exc), "notice": target.notice}
        return _with_place(answer, target)

    def _spec(self, name: str, context: RunContext) -> ToolSpec:
        spec = TOOLS.get(name) if isinstance(name, str) else None
        # Code mode includes the tools of compute mode.
        if spec is None or (spec.mode == "code" and context.sandbox.mode != "code"):
            offered = {tool.name for tool in self.specs(context.sandbox)} | {"sandbox_run"}
            raise InvalidRequest(
                f"unknown tool {shown(str(name))}",
                hint=did_you_mean(str(name), offered),
                tool=str(name)[:80],
            )
        return spec

    async def _open(self, arguments: Mapping[str, Any], context: RunContext) -> Answer:
        key = arguments.get("session_key")
        target = await self._sessions.open(
            context,
            key=None if key is None else self._sessions.key_for(context, key),
            image=arguments.get("image"),
        )
        return _with_place(tool_answers.opened(target.info), target)

    async def _close(
        self, arguments: Mapping[str, Any], context: RunContext, which: str | None
    ) -> Answer:
        info = await self._sessions.to_close(context, which)
        if info is None:
            return {"ok": True, "closed": False, "sandbox_id": None, "session_id": None}
        # It ended in the meantime, by itself or by a concurrent call: it is closed.
        with suppress(NotFound):
            await self._engine.destroy(info.id)
        self._sessions.closed(info, context)
        self._files.forget(info.id)
        if info.workspace_id is not None and arguments.get("delete_workspace", True):
            await self._engine.workspaces.delete(info.workspace_id, tenant=info.tenant)
        return {"ok": True, "closed": True, **tool_answers.which(info)}


@contextmanager
def _recorded(context: RunContext) -> Iterator[None]:
    """Name the agent in the records of a call; a client that calls a tool itself has none."""
    agent = None
    if context.agent_name and not context.client:
        agent = CallingAgent(context.agent_name, context.agent_run_id)
    token = caller_agent.set(agent)
    try:
        yield
    finally:
        caller_agent.reset(token)


def _with_place(answer: Answer, target: CallSandbox) -> Answer:
    answer = {**tool_answers.which(target.info), **answer}
    if target.notice is not None:
        answer["notice"] = target.notice
    return answer
