"""Pydantic AI's conformance tests of workspaces, on ours. Runs in its environment."""

import asyncio

import pytest
from pydantic_ai import Agent, ModelMessage, ModelResponse, RunContext, TextPart, ToolCallPart
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.workspaces import WorkspaceOutputLimitError, WorkspaceRef, WorkspaceTimeoutError
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from sandkasten import AsyncSandbox
from sandkasten.integrations.pydantic_ai_workspace import (
    SandkastenWorkspace,
    SandkastenWorkspaceBackend,
)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def backend():
    async with AsyncSandbox() as box:
        yield SandkastenWorkspaceBackend(box)


class TestSandkastenWorkspace(WorkspaceBackendSuite):
    @pytest.fixture
    async def backend(self):
        async with AsyncSandbox() as box:
            yield SandkastenWorkspaceBackend(box)

    @pytest.fixture
    async def fresh_backend(self):
        backends = []

        def make():
            backends.append(SandkastenWorkspaceBackend())
            return backends[-1]

        yield make
        for opened in backends:
            if opened.ref is not None:
                await (await opened.sandbox()).close()

    @pytest.fixture
    def attach_backend(self):
        return lambda ref: SandkastenWorkspaceBackend(ref=ref)

    @pytest.fixture
    def destroy_environment(self):
        async def destroy(backend):
            await (await backend.sandbox()).close()

        return destroy


@pytest.mark.anyio
async def test_output_that_is_cut_is_an_error(backend):
    with pytest.raises(WorkspaceOutputLimitError) as caught:
        await backend.run("head -c 9000000 /dev/zero", shell=True)
    assert caught.value.stdout.startswith("\0")


@pytest.mark.anyio
async def test_command_that_a_signal_ends_has_the_status_of_a_shell(backend):
    assert (await backend.run("kill -9 $$", shell=True)).exit_code == 137
    assert (await backend.run(["/etc/hostname"])).exit_code == 126


@pytest.mark.anyio
async def test_write_outside_of_the_workspace_is_a_permission_error(backend):
    with pytest.raises(PermissionError):
        await backend.write_bytes("/etc/new", b"")


@pytest.mark.anyio
async def test_command_that_is_stopped_takes_its_background_jobs_with_it(backend):
    job = "sleep 3600 & echo $! > job; sleep 3600"
    with pytest.raises(WorkspaceTimeoutError):
        await backend.run(job, shell=True, timeout=5)
    assert await has_ended(backend)
    await backend.remove("/workspace/job")
    running = asyncio.create_task(backend.run(job, shell=True))
    await backend.run("until [ -s job ]; do sleep 0.05; done", shell=True)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await has_ended(backend)


async def has_ended(backend) -> bool:
    waits = "for i in $(seq 100); do kill -0 $(cat job) || exit 0; sleep 0.1; done; exit 1"
    return (await backend.run(waits, shell=True)).exit_code == 0


@pytest.mark.anyio
async def test_timeout_that_is_not_a_number_is_rejected(backend):
    with pytest.raises(ValueError, match="timeout must be"):
        await backend.run(["true"], timeout=float("nan"))


def scripted(*calls: tuple[str, dict[str, object]]) -> FunctionModel:
    """Answer with the next call, and after the last one with the last tool's answer."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        returned = [
            part
            for message in messages
            for part in message.parts
            if isinstance(part, ToolReturnPart)
        ]
        if len(returned) % len(calls) or messages[-1].parts[-1].part_kind == "user-prompt":
            name, arguments = calls[len(returned) % len(calls)]
            return ModelResponse(parts=[ToolCallPart(name, arguments)])
        return ModelResponse(parts=[TextPart(str(returned[-1].content))])

    return FunctionModel(answer)


@pytest.mark.anyio
async def test_agent_solves_a_task_and_a_later_run_continues_in_its_sandbox():
    model = scripted(
        ("write", {"path": "total.py", "text": "print(sum(range(10)))\n"}),
        ("shell", {"command": "python3 total.py; ls | wc -l"}),
    )
    agent = Agent(model, capabilities=[SandkastenWorkspace()])

    @agent.tool
    async def write(ctx: RunContext, path: str, text: str) -> str:
        await ctx.workspace.write_text(path, text)
        return "written"

    @agent.tool
    async def shell(ctx: RunContext, command: str) -> str:
        return (await ctx.workspace.run(command, shell=True)).stdout

    first = await agent.run("Add the numbers.")
    assert first.output == "45\n1\n"
    ref = first.workspace.ref
    assert ref.provider == "sandkasten"
    box = await AsyncSandbox.attach(ref.id, destroy_on_exit=True)
    async with box:
        await box.write("second", "")
        again = await agent.run("Again.", message_history=first.all_messages())
        assert again.output == "45\n2\n"
        other = WorkspaceRef(provider="other", id=ref.id)
        assert SandkastenWorkspace().get_workspace(None, ref=other) is None
    async with AsyncSandbox() as box:
        result = await agent.run("Add.", workspace=SandkastenWorkspaceBackend(box))
        assert result.output == "45\n1\n"
        assert result.workspace.ref.id == box.id
    assert {sandbox.id for sandbox in await AsyncSandbox.list()} == set()


def test_sandbox_of_a_run_that_is_cancelled_is_known():
    async def cancelled_at_once():
        backend = SandkastenWorkspaceBackend()
        first = asyncio.create_task(backend.working_dir())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        async with asyncio.timeout(60):
            while backend.ref is None:  # noqa: ASYNC110  (nothing else tells)
                await asyncio.sleep(0.05)
        box = await backend.sandbox()
        assert backend.ref.id == box.id
        assert [sandbox.id for sandbox in await AsyncSandbox.list()] == [box.id]
        await box.close()

    asyncio.run(cancelled_at_once())
