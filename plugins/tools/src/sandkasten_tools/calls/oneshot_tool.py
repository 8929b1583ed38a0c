"""`sandbox_run`: code in a new sandbox, the same for every client."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sandkasten.model.request_spellings import run_files
from sandkasten.model.sandbox.limit_names import parse_limits
from sandkasten.model.sandbox.oneshot_values import RunRequest, StoredKey
from sandkasten_tools.calls import tool_answers
from sandkasten_tools.calls.file_tools import check_tool_write, stored_files_denied
from sandkasten_tools.calls.policy_check import network_of
from sandkasten_tools.calls.tool_arguments import encoded
from sandkasten_tools.calls.tool_requests import (
    compute_image,
    runtime_for,
    timeout_for,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten_runtime.engine.engine import Engine
    from sandkasten_tools.calls.run_context import RunContext
    from sandkasten_tools.calls.tool_answers import Answer


def with_file_mapping(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return arguments whose list of stored files is a mapping: models see only that form."""
    files = arguments.get("files")
    if not isinstance(files, list):
        return arguments
    named = {
        path: {"file_key": source.key}
        for path, source in run_files(files).items()
        if isinstance(source, StoredKey)
    }
    return {**arguments, "files": named}


class OneshotTool:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run(self, arguments: Mapping[str, Any], context: RunContext) -> Answer:
        request = self._request(arguments, context)
        return tool_answers.run(await self._engine.run(request, context.quota))

    async def check(self, context: RunContext) -> None:
        """Raise what every run of this agent would raise before it makes anything."""
        # An empty program in every language.
        await self._engine.preflight.run(self._request({"code": "\n"}, context))

    def _request(self, arguments: Mapping[str, Any], context: RunContext) -> RunRequest:
        sandbox = context.sandbox
        files = {
            path: encoded(f"files.{path[:80]}", data) if isinstance(data, str) else data
            for path, data in run_files(arguments.get("files")).items()
        }
        if not context.files and any(isinstance(content, StoredKey) for content in files.values()):
            raise stored_files_denied()
        limits = parse_limits(sandbox.options.limits, self._engine.policy.limits)
        for count, data in enumerate(files.values()):
            # A stored file may have any size, as with sandbox_stage_file.
            size = 0 if isinstance(data, StoredKey) else len(data)
            check_tool_write(
                size, count, max_bytes=limits.tool_file_bytes, max_files=limits.tool_files
            )
        return RunRequest(
            code=encoded("code", arguments["code"]),
            runtime=arguments.get("runtime") or runtime_for(sandbox),
            args=tuple(arguments.get("args", ())),
            files=files,
            timeout_seconds=arguments.get("timeout_seconds", timeout_for(sandbox)),
            artifacts=tuple(arguments.get("artifacts", ())),
            options=replace(
                sandbox.options,
                image=compute_image(sandbox),
                network=network_of(sandbox, self._engine.policy),
                env=arguments.get("env", {}),
                idle_timeout_seconds=None,
            ),
            tenant=context.tenant,
            key_id=context.key_id,
            agent_run_id=context.agent_run_id,
            agent=context.installed_agent,
        )
