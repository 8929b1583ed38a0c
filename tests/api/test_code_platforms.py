"""Code contexts on every backend: what a kernel needs of a sandbox differs between them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plugins.docker.tests.site import nothing_left, opened
from sandkasten.client.server.embedded import ServerAddress, settings
from sandkasten.errors import ContextNotFound
from sandkasten.model.commands.code_values import CodeRequest, ContextRequest
from sandkasten.model.images.known_images import DENO, JJAVA
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.assembly.engine_assembly import open_engine
from tests.engines import lent, stock

if TYPE_CHECKING:
    from sandkasten.model.commands.code_values import CodeResult
    from sandkasten_runtime.engine.engine import Engine

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("P80"),
    pytest.mark.long(reason="`make test` has the backend local"),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def follow_contexts(engine: Engine, other: Engine, box: str) -> None:
    """Create, run, interrupt, restart and remove contexts. `other` comes after a killed daemon."""
    code = engine.code

    async def text(of: Engine, what: str) -> str | None:
        return (await of.code.run(box, CodeRequest(what))).text

    assert await text(engine, "x = 41; x + 1") == "42"
    made = await code.create(box, ContextRequest("bash", cwd="/tmp", env={"OWN": "1"}))
    shown = await code.run(box, CodeRequest("y=2; echo $OWN $PWD", context=made.id))
    assert shown.stdout == "1 /tmp\n"
    begun = asyncio.Event()
    waits = CodeRequest("echo begun; sleep 600", context=made.id)
    running = asyncio.create_task(code.run(box, waits, lambda _: begun.set()))
    await begun.wait()
    await code.interrupt(box, made.id)
    assert (await running).status == "interrupted"
    # Another process has the variables, and the first one was not closed.
    assert await text(other, "x") == "41"
    kept = await other.code.run(box, CodeRequest("echo $y", context=made.id))
    assert kept.stdout == "2\n"
    assert {one.language for one in await other.code.list(box)} == {"python", "bash"}
    await code.restart(box, made.id)
    gone = await code.run(box, CodeRequest("echo ${y:-gone}", context=made.id))
    assert gone.stdout == "gone\n"
    await code.remove(box, made.id)
    with pytest.raises(ContextNotFound):
        await code.run(box, CodeRequest("1", context=made.id))


@pytest.mark.parametrize("backend", ["local", "oci", "gvisor"])
async def test_contexts_on_the_host_image(backend: str, tmp_path: Path):
    found = settings(ServerAddress(str(tmp_path / "data"), backend))
    engine, other = await open_engine(found), await open_engine(found)
    box = (await engine.create(CreateRequest())).id
    try:
        await follow_contexts(engine, other, box)
    finally:
        await engine.destroy(box)
        await engine.aclose()
        await other.aclose()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["bind", "volume"])
async def test_contexts_on_docker(mode: str, tmp_path: Path):
    reached = lent.engine("private", "debian")
    wheels = tmp_path / "wheels"
    download = (sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "-d")
    await asyncio.to_thread(lambda: subprocess.run([*download, wheels, "ipykernel"], check=True))
    data = Path(reached.shares) / tmp_path.name
    more = {"packages_find_links": str(wheels)}
    options = SandboxOptions(
        backend="docker", image=stock.reference("debian"), pip_packages=("ipykernel",)
    )
    async with (
        opened(data, reached, mode, **more) as engine,
        opened(data, reached, mode, **more) as other,
    ):
        box = (await engine.create(CreateRequest(options))).id
        await follow_contexts(engine, other, box)
    # A copy of the packages stays in the engine for the next sandbox.
    owner = (data / "docker" / "owner").read_text()
    copies = ("label=sandkasten=content", "-f", f"label=sandkasten.owner={owner}")
    for volume in reached.docker("volume", "ls", "-q", "-f", *copies).split():
        assert mode == "volume"
        reached.docker("volume", "rm", volume)
    assert await nothing_left(reached, data) == []


async def test_javascript_and_typescript_run_in_deno(tmp_path: Path):
    found = settings(ServerAddress(str(tmp_path / "data"), "local"))
    engine = await open_engine(found)
    box = ""
    try:
        packages = SandboxOptions(pip_packages=(DENO,))
        box = (await engine.create(CreateRequest(packages))).id
        assert {"javascript", "typescript"} <= set(await engine.code.languages(box))

        async def run(code: str, language: str = "js", **more: Any) -> CodeResult:
            return await engine.code.run(box, CodeRequest(code, language, **more))

        assert (await run("const a = 41; console.log('out')")).stdout == "out\n"
        assert (await run("await Promise.resolve(a + 1)")).text == "42"
        assert (await run("import { basename } from 'path'\nbasename('/a/b')")).text == '"b"'
        assert (await run("process.env.GIVEN", env={"GIVEN": 'a"b'})).text == "'a\"b'"
        assert (await run("process.env.GIVEN")).text is None
        wrong = await run("syntax error")
        assert wrong.error is not None
        assert (wrong.error.name, "syntax error" in wrong.error.value) == ("Error", True)
        typed = await run("const s: string = 'typed'; console.log(s)", "ts")
        assert typed.stdout == "typed\n"
        # deno ends when it is interrupted: the kernel is another one, at once.
        endless = await run("while (true) {}", timeout_seconds=0.5)
        assert (endless.status, endless.kernel_restarted) == ("timed_out", True)
        assert (await run("typeof a")).text == '"undefined"'
    finally:
        if box:
            await engine.destroy(box)
        await engine.aclose()


@pytest.mark.timeout(300)
async def test_java_runs_in_jjava(tmp_path: Path):
    engine = await open_engine(settings(ServerAddress(str(tmp_path / "data"), "local")))
    box = ""
    try:
        options = SandboxOptions(pip_packages=(JJAVA,), env={"GIVEN": "first"})
        box = (await engine.create(CreateRequest(options))).id

        async def run(code: str, **more: Any) -> CodeResult:
            return await engine.code.run(box, CodeRequest(code, "java", **more))

        assert (await run('int a = 41; System.out.println("out")')).stdout == "out\n"
        assert (await run("a + 1")).text == "42"
        given = 'System.getProperty("GIVEN", "none")'
        assert (await run(given)).text == "first"
        assert (await run(given, env={"GIVEN": 'a"b\\\n'})).text == 'a"b\\\n'
        assert (await run(given)).text == "first"
        wrong = await run("1 / 0")
        assert wrong.error is not None
        assert "ArithmeticException" in wrong.error.value
        endless = await run("while (true) {}", timeout_seconds=0.5)
        assert (endless.status, endless.kernel_restarted) == ("timed_out", False)
        assert (await run("a")).text == "41"
    finally:
        if box:
            await engine.destroy(box)
        await engine.aclose()
