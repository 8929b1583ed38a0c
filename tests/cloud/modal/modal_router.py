"""The part of the Modal test server that runs commands in sandboxes: the task command router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpclib import GRPCError, Status
from modal_proto import task_command_router_pb2 as router_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from grpclib.server import Stream

    from tests.cloud.modal.modal_machines import Exec, Machine


class TaskRouter:
    """Its methods are the calls, by their names in the protocol. `machine` finds one by task id."""

    def __init__(self, machine: Callable[[str], Machine]) -> None:
        self._machine = machine

    def _exec(self, task_id: str, exec_id: str) -> Exec:
        machine = self._machine(task_id)
        if exec_id not in machine.execs:
            raise GRPCError(Status.NOT_FOUND, f"exec {exec_id} not found")
        return machine.execs[exec_id]

    async def TaskExecStart(
        self, request: router_pb2.TaskExecStartRequest
    ) -> router_pb2.TaskExecStartResponse:
        env = {}
        for source in request.secret_sources:
            env.update(source.env.contents)
        machine = self._machine(request.task_id)
        if machine.ended:
            raise GRPCError(Status.FAILED_PRECONDITION, "the task has finished")
        await machine.run(request.exec_id, request.command_args, env)
        return router_pb2.TaskExecStartResponse()

    async def TaskExecStdinWrite(
        self, request: router_pb2.TaskExecStdinWriteRequest
    ) -> router_pb2.TaskExecStdinWriteResponse:
        found = self._exec(request.task_id, request.exec_id)
        await found.write(request.offset, request.data, eof=request.eof)
        return router_pb2.TaskExecStdinWriteResponse()

    async def TaskExecWait(
        self, request: router_pb2.TaskExecWaitRequest
    ) -> router_pb2.TaskExecWaitResponse:
        code = await self._exec(request.task_id, request.exec_id).process.wait()
        return router_pb2.TaskExecWaitResponse(code=code)

    async def read_output(
        self,
        request: router_pb2.TaskExecStdioReadRequest,
        stream: Stream[router_pb2.TaskExecStdioReadRequest, router_pb2.TaskExecStdioReadResponse],
    ) -> None:
        """Serve TaskExecStdioRead: bytes from an offset until the end."""
        found = self._exec(request.task_id, request.exec_id)
        of_errors = router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDERR
        output = found.stderr if request.file_descriptor == of_errors else found.stdout
        offset = request.offset
        while piece := await output.read(offset):
            offset += len(piece)
            await stream.send_message(router_pb2.TaskExecStdioReadResponse(data=piece))
