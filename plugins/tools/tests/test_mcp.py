"""`sandkasten mcp` with the real client, the real command and real sandboxes."""

from __future__ import annotations

import array
import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import termios
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.types import CONNECTION_CLOSED, INVALID_REQUEST

from sandkasten.client.server.daemon_or_embedded import ServerAddress
from sandkasten.errors import InvalidRequest
from sandkasten.model.optional_extras import install_command
from sandkasten_agents.run_sandboxes import RunSandboxes
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.store.run_directory import RunDirectory
from sandkasten_server.cli.main import main
from sandkasten_server.daemon.settings.http_settings import HttpSettings
from sandkasten_tools.adapter_protocols import openai_functions
from sandkasten_tools.calls.tool_schemas import TOOLS
from sandkasten_tools.mcp.mcp_http import mcp_over_http
from sandkasten_tools.tool_access import open_tools
from sandkasten_tools.tool_provider import ToolOffer, provide_tools
from tests.patience import PATIENCE_S
from tests.security.harness import poll
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "sandkasten_server.cli"]
RUN: dict[str, Any] = {
    "code": "import sys; print(6 * 7); print(sys.argv[1], file=sys.stderr)",
    "args": ["x"],
}

MALFORMED: list[tuple[str, dict[str, Any]]] = [
    ("sandbox_exec", {}),
    ("sandbox_exec", {"cmd": 7}),
    ("sandbox_fs_read", {"path": "x", "nonsense": 1}),
    ("sandbox_fs_write", {"path": "x", "text": "a", "contents": "b"}),
    ("sandbox_exec", {"cmd": "true", "sandbox_id": "sbx_0000000000000000"}),
]


def environ(data_dir: Path) -> dict[str, str]:
    return {**os.environ, "SANDKASTEN_DATA_DIR": str(data_dir), "SANDKASTEN_BACKEND": "local"}


def stdio(data_dir: Path, *words: str) -> StdioServerParameters:
    return StdioServerParameters(
        command=COMMAND[0], args=[*COMMAND[1:], "mcp", *words], env=environ(data_dir)
    )


def settings(data_dir: Path):
    return load({"data_dir": str(data_dir), "listen": "127.0.0.1:0"}, {}, data_dir.parent)


@asynccontextmanager
async def over_http(data_dir: Path) -> AsyncIterator[str]:
    daemon_settings = settings(data_dir)
    async with (
        provide_tools(daemon_settings, ToolOffer()) as tools,
        mcp_over_http(tools.shapes, tools.open_caller, daemon_settings.of(HttpSettings)) as url,
    ):
        yield url


async def sandboxes(data_dir: Path) -> list[str]:
    engine = await open_engine(settings(data_dir))
    try:
        return [
            sandbox.id for sandbox in await engine.list(all=True) if sandbox.status == "running"
        ]
    finally:
        await engine.aclose()


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    """Poll, because another process or task does the work."""
    for _ in range(int(PATIENCE_S / 0.05)):
        if await check():
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"it did not come to that within {PATIENCE_S:g} s")


async def left(data_dir: Path, *ids: str) -> None:
    async def are() -> bool:
        return await sandboxes(data_dir) == list(ids)

    await until(are)


async def call(client: Client, name: str, **arguments: Any) -> Mapping[str, Any]:
    answer = await client.call_tool(name, arguments)
    assert answer.structured_content is not None
    assert json.loads(getattr(answer.content[0], "text")) == answer.structured_content  # noqa: B009
    assert answer.is_error is (answer.structured_content.get("ok") is False)
    return answer.structured_content


def same(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer without the values that differ between runs."""
    return {k: v for k, v in answer.items() if k not in ("duration_ms", "sandbox_id")}


@pytest.mark.promise("P65")
async def test_a_client_over_stdio_has_its_own_sandbox(tmp_path):
    data_dir = tmp_path / "d"
    async with Client(stdio(data_dir)) as client:
        listed = (await client.list_tools()).tools
        assert [
            {"name": t.name, "description": t.description, "parameters": t.input_schema}
            for t in listed
        ] == [function["function"] for function in openai_functions(TOOLS.values())]
        async with open_tools(ServerAddress(str(data_dir), "local")) as direct:
            expected = same(await direct.call("sandbox_run", RUN))
        assert same(await call(client, "sandbox_run", **RUN)) == expected
        opened = await call(client, "sandbox_open")
        await call(client, "sandbox_fs_write", path="src/a.txt", text="grün\n")
        ran = await call(client, "sandbox_exec", cmd="cd src; export A=1; cat a.txt")
        assert (ran["output"], ran["exit_code"]) == ("grün\n", 0)
        assert ran["sandbox_id"] == opened["sandbox_id"]
        assert (await call(client, "sandbox_exec", cmd="echo $A; pwd"))["stdout"] == (
            "1\n/workspace/src\n"
        )
        ended = await call(client, "sandbox_exec", cmd="exit 3")
        assert ended["exit_code"] == 3
        published = await call(client, "sandbox_publish_file", source="src/a.txt")
        await call(
            client, "sandbox_stage_file", file_key=published["file_key"], destination="b.txt"
        )
        assert (await call(client, "sandbox_fs_read", path="b.txt"))["content"] == "grün\n"
        assert await sandboxes(data_dir) == [opened["sandbox_id"]]
        for name, arguments in MALFORMED:
            refused = await call(client, name, **arguments)
            assert (refused["ok"], bool(refused["code"])) == (False, True)
        assert (await call(client, "sandbox_close"))["closed"]
        assert await sandboxes(data_dir) == []
        await call(client, "sandbox_open")
    await left(data_dir)


def lines(*requests: tuple[str, dict[str, Any]]) -> bytes:
    messages = [
        {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        for number, (method, params) in enumerate(requests, 1)
    ]
    return "".join(json.dumps(message) + "\n" for message in messages).encode()


HELLO = (
    "initialize",
    {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"},
    },
)


@pytest.mark.promise("P65")
@pytest.mark.parametrize(
    "end", few(["the client leaves", "the client is killed", "it is told to end"], 2)
)
async def test_no_sandbox_outlives_its_client(tmp_path, end):
    data_dir = tmp_path / "d"
    server = await asyncio.create_subprocess_exec(
        *COMMAND, "mcp", "--mode", "code",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ(data_dir),
    )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    opening = ("tools/call", {"name": "sandbox_open", "arguments": {}})
    server.stdin.write(
        lines(HELLO) + b"no json at all\n" + lines(HELLO, opening)[len(lines(HELLO)) :]
    )
    # Nothing but the protocol, from the first byte on.
    assert (
        json.loads(await server.stdout.readline())["result"]["serverInfo"]["name"] == "sandkasten"
    )
    opened = json.loads(await server.stdout.readline())
    assert opened["result"]["structuredContent"]["status"] == "ready"
    waiting = ("tools/call", {"name": "sandbox_exec", "arguments": {"cmd": "sleep 99"}})
    server.stdin.write(lines(HELLO, opening, waiting).splitlines(keepends=True)[2])
    await server.stdin.drain()
    if end == "it is told to end":
        server.send_signal(signal.SIGTERM)
    else:
        server.stdin.close()
    if end == "the client is killed":
        # The client has gone, so pending output is not read.
        server._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
    async with asyncio.timeout(PATIENCE_S):
        rest = await server.stdout.read()
        assert await server.wait() == 0
    # The call in progress was cancelled. A client that left does not wait for an answer. One that
    # is still there is told, if the server had read the call when the signal came.
    answers = [json.loads(line) for line in rest.splitlines()]
    closed = {"code": CONNECTION_CLOSED, "message": "Connection closed"}
    assert answers in ([], [{"jsonrpc": "2.0", "id": 3, "error": closed}])
    assert end == "it is told to end" or not answers
    assert await sandboxes(data_dir) == []


@pytest.mark.parametrize(
    "arguments",
    [
        '{"cmd": "echo \\ud800"}',
        '{"\\udc00": 1}',
        '{"cmd": "true", "timeout_ms": 1%s}' % ("0" * 5000),
    ],
)
async def test_a_request_that_cannot_be_decoded_is_answered_with_its_id(tmp_path, arguments):
    """A model may produce half of a surrogate pair; its client must not wait forever."""
    server = await asyncio.create_subprocess_exec(
        *COMMAND, "mcp",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ(tmp_path / "d"),
    )  # fmt: skip
    params = f'{{"name": "sandbox_exec", "arguments": {arguments}}}'
    bad = f'{{"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": {params}}}'
    batch = '[{"jsonrpc": "2.0", "id": 8, "method": "ping"}]'
    # Nothing in these can be answered.
    silent = 'no json\n[]\n7\n{"jsonrpc": "2.0", "method": "x", "params": 7}\n'
    requests = lines(HELLO) + f"{silent}{bad}\n{batch}\n".encode()
    async with asyncio.timeout(PATIENCE_S):
        output, _ = await server.communicate(requests)
    answers = {answer["id"]: answer for answer in map(json.loads, output.splitlines())}
    assert answers.pop(1)["result"]
    assert {key: answer["error"]["code"] for key, answer in answers.items()} == {
        "x": INVALID_REQUEST,
        8: INVALID_REQUEST,
    }


def test_a_client_that_stops_reading_cannot_keep_its_sandbox(tmp_path):
    data_dir = tmp_path / "d"
    server = subprocess.Popen(
        [*COMMAND, "mcp", "--mode", "code"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ(data_dir),
    )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    opening = ("tools/call", {"name": "sandbox_open", "arguments": {}})
    # An answer that no pipe holds.
    printing = "head -c 150000 /dev/zero | tr '\\0' x"
    large = ("tools/call", {"name": "sandbox_exec", "arguments": {"cmd": printing}})
    try:
        server.stdin.write(lines(HELLO, opening))
        server.stdin.flush()
        for _ in range(2):
            assert server.stdout.readline()
        server.stdin.write(b"".join(lines(HELLO, opening, large).splitlines(keepends=True)[2:]))
        server.stdin.flush()
        # The pipe is full, so the answer is being written.
        poll("room in the pipe", lambda: unread(server.stdout) < 1 << 16)
        server.stdin.close()
        assert server.wait(PATIENCE_S) == 0
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    assert asyncio.run(sandboxes(data_dir)) == []


def unread(pipe) -> int:
    """Return how many bytes of a pipe wait for its reader."""
    waiting = array.array("i", [0])
    fcntl.ioctl(pipe.fileno(), termios.FIONREAD, waiting)
    return waiting[0]


@pytest.mark.promise("P65")
@pytest.mark.parametrize("options", [[], ["--session", "kept"]])
async def test_requests_before_the_end_of_the_input_are_answered(tmp_path, options):
    """As in the guide: `echo … | sandkasten mcp`."""
    server = await asyncio.create_subprocess_exec(
        *COMMAND, "mcp", *options,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ(tmp_path / "d"),
    )  # fmt: skip
    async with asyncio.timeout(PATIENCE_S):
        output, _ = await server.communicate(lines(HELLO))
    [answer] = output.splitlines()
    assert json.loads(answer)["result"]["protocolVersion"] == HELLO[1]["protocolVersion"]


@pytest.mark.parametrize("end", few(["the client leaves", "it is told to end"]))
async def test_a_server_stopped_while_its_client_sends_exits_cleanly(tmp_path, end):
    for _ in range(3):
        server = await asyncio.create_subprocess_exec(
            *COMMAND, "mcp",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environ(tmp_path / "d"),
        )  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(lines(HELLO))
        assert await server.stdout.readline()
        server.stdin.write(lines(*[("ping", {})] * 300))
        # The calls are in progress.
        assert await server.stdout.readline()
        if end == "it is told to end":
            server.send_signal(signal.SIGTERM)
        else:
            server.stdin.close()
        async with asyncio.timeout(PATIENCE_S):
            _, errors = await server.communicate()
        assert (server.returncode, errors) == (0, b"")


@pytest.mark.promise("P65")
async def test_two_clients_over_http_do_not_see_each_other(tmp_path):
    data_dir = tmp_path / "d"
    async with over_http(data_dir) as url, Client(url) as first:
        async with Client(url) as other:
            foreign = await call(other, "sandbox_open")
            await call(other, "sandbox_fs_write", path="secret", text="s3cret")
            own = await call(first, "sandbox_open")
            assert own["sandbox_id"] != foreign["sandbox_id"]
            assert (await call(first, "sandbox_fs_list"))["entries"] == []
            for name, arguments in [
                ("sandbox_fs_read", {"path": "secret", "sandbox_id": foreign["sandbox_id"]}),
                ("sandbox_exec", {"cmd": "cat secret", "session_id": foreign["sandbox_id"]}),
                ("sandbox_close", {"sandbox_id": foreign["sandbox_id"]}),
                ("sandbox_open", {"session_key": foreign["session_key"]}),
            ]:
                assert (await call(first, name, **arguments))["code"] == "SESSION_NOT_FOUND"
            assert (await call(other, "sandbox_fs_read", path="secret"))["content"] == "s3cret"
        await left(data_dir, own["sandbox_id"])
        assert (await call(first, "sandbox_exec", cmd="echo on"))["output"] == "on\n"
    await left(data_dir)


@pytest.mark.promise("P65")
@pytest.mark.parametrize("cmd", few(["sleep 77; sleep 78", ["sleep", "77"]]))
async def test_a_cancelled_call_ends_its_command(tmp_path, cmd):
    async with over_http(tmp_path / "d") as url, Client(url) as client:
        await call(client, "sandbox_open")
        running = asyncio.create_task(client.call_tool("sandbox_exec", {"cmd": cmd}))

        async def sleeps() -> bool:
            result = await call(client, "sandbox_exec", cmd=["pgrep", "-x", "sleep"])
            return result["exit_code"] == 0

        async def sleeps_no_more() -> bool:
            return not await sleeps()

        await until(sleeps)
        running.cancel()
        await until(sleeps_no_more)
        await asyncio.gather(running, return_exceptions=True)
        # The shell is free again.
        assert (await call(client, "sandbox_exec", cmd="echo on"))["output"] == "on\n"


async def test_the_command_serves_http_and_ends_with_its_sandboxes(tmp_path):
    data_dir = tmp_path / "d"
    server = await asyncio.create_subprocess_exec(
        *COMMAND, "mcp", "--transport", "http", "--listen", "127.0.0.1:0",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environ(data_dir),
    )  # fmt: skip
    assert server.stdout is not None
    assert server.stderr is not None
    url = (await server.stderr.readline()).decode().split()[-1]
    async with Client(url) as client:
        opened = await call(client, "sandbox_open")
        assert await sandboxes(data_dir) == [opened["sandbox_id"]]
        async with open_tools(ServerAddress(str(data_dir), "local")) as direct:
            expected = same(await direct.call("sandbox_run", RUN))
        assert same(await call(client, "sandbox_run", **RUN)) == expected
        assert expected["stdout"] == "42\n"
        server.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            assert await server.wait() == 0
    assert await server.stdout.read() == b""
    assert await sandboxes(data_dir) == []


@pytest.mark.parametrize("mode", ["compute", "code", "all"])
async def test_a_mode_offers_only_its_own_tools(tmp_path, mode):
    async with open_tools(ServerAddress(str(tmp_path / "d"), "unisolated"), mode=mode) as tools:
        assert [tool.name for tool in tools.tools()] == [
            spec.name for spec in TOOLS.values() if mode in (spec.mode, "all")
        ]


async def test_a_clients_sandbox_is_not_mistaken_for_a_leftover_of_a_run(tmp_path):
    data_dir = tmp_path / "d"
    async with open_tools(ServerAddress(str(data_dir), "local")) as tools:
        opened = await tools.call("sandbox_open", {})
        engine = await open_engine(settings(data_dir))
        try:
            assert await RunSandboxes(engine, RunDirectory(data_dir / "runs")).sweep() == []
        finally:
            await engine.aclose()
        assert await sandboxes(data_dir) == [opened["sandbox_id"]]
    assert await sandboxes(data_dir) == []


async def test_a_named_session_persists_for_the_next_client(tmp_path):
    place = ServerAddress(str(tmp_path / "d"), "local")
    async with open_tools(place, session="mine") as tools:
        await tools.call("sandbox_fs_write", {"path": "kept", "text": "k"})
    async with open_tools(place) as tools:
        assert (await tools.call("sandbox_fs_list", {}))["entries"] == []
    async with open_tools(place, session="mine") as tools:
        assert (await tools.call("sandbox_fs_read", {"path": "kept"}))["content"] == "k"
        await tools.call("sandbox_close", {})
    with pytest.raises(InvalidRequest, match="'a:b' is not a valid session name"):
        async with open_tools(place, session="a:b"):
            pass
    assert await sandboxes(tmp_path / "d") == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--transport", "http", "--listen", "0.0.0.0:0"], "requires a key"),
        (["--transport", "http", "--session", "x"], "leave --session out"),
    ],
)
def test_invalid_server_options_are_typed_errors(tmp_path, capfd, words, code):
    with pytest.raises(SystemExit) as ended:
        main(["--data-dir", str(tmp_path / "d"), "mcp", *words])
    out, err = capfd.readouterr()
    assert (ended.value.code, out) == (125, "")
    assert code in err


def test_an_address_in_use_is_a_typed_error(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        done = subprocess.run(
            [*COMMAND, "mcp", "--transport", "http", "--listen", listen],
            env=environ(tmp_path / "d"),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 125
    errors = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert [line.partition(":")[0] for line in errors] == ["error", "hint"]
    assert f"cannot listen on {listen}" in errors[0]


@pytest.mark.parametrize("missing", few([["mcp"], ["jsonschema"], ["mcp", "jsonschema"]]))
def test_without_the_library_the_command_names_the_package_to_install(tmp_path, missing):
    blocked = f"""
import sys, types

def find_spec(name, path=None, target=None):
    if name in {missing}:
        raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, types.SimpleNamespace(find_spec=find_spec))
from sandkasten_server.cli.main import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", blocked, "mcp"], env=environ(tmp_path / "d"), capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr == (
        f"error: the MCP server is not installed (no module named {missing[0]})\n"
        f"hint: {install_command('mcp')}\n"
    )
