"""One rule for the image of a sandbox, on every path that makes one.

A request that names no image means `default_image`, or the alias of what it runs. An alias means
its target in the store, and without it the host image, where the backend has one and the operator
allows it. The answer names the image, and warns if it replaces one that the request named.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from sandkasten.errors import SandkastenError
from sandkasten.model.pool.pool_kinds import PoolKind
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.policy import Policy
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest, wanted_images
from sandkasten_e2b.e2b_assembly import open_e2b
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.engine import Engine
from sandkasten_runtime.engine.pool.pool_rules import PoolRules
from sandkasten_runtime.engine.storage.stage_publish import StagePublish
from sandkasten_runtime.images.archives.archive_import import Import, import_file
from sandkasten_runtime.images.catalog import Images
from sandkasten_runtime.images.layers.image_store import LayerStore
from sandkasten_tools.calls.agent_sandbox import AgentSandbox
from sandkasten_tools.calls.run_context import RunContext
from sandkasten_tools.calls.toolbox import Toolbox
from sandkasten_tools.client_caller import ClientCaller, ToolMode
from tests.api.daemon_with_database import AS_OPERATOR, booked
from tests.e2b_requests import E2b
from tests.engine.test_backend_images import Keeper
from tests.imagekit import docker_members, sketch, write_tar
from tests.store.memory_store import MemoryStore
from tests.unisolated.backend import UnisolatedBackend

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from sandkasten.ports import FileStore

pytestmark = pytest.mark.anyio

TARGETS: Final = {"python": "python:3.11-slim", "linux": "ubuntu:22.04"}


class Scene:
    """An engine with a backend that shows this machine's programs and one that cannot."""

    def __init__(
        self, root: Path, backend: str, case: str, kinds: tuple[PoolKind, ...] = ()
    ) -> None:
        self.root, self.case = root, case
        self.layers = LayerStore(root / "images")
        self.library = Images(self.layers, strict=case == "strict")
        self.engine = Engine(
            backends={"unisolated": UnisolatedBackend(), "docker": Keeper()},
            default_backend=backend,
            store=MemoryStore(),
            images=self.library,
            library=self.library,
            policy=Policy(),
            clock=SystemClock(),
            pool=PoolRules(idle_s=60.0, kinds=kinds),
        )

    def fill(self) -> None:
        for name in TARGETS.values() if self.case == "stored" else ():
            path = write_tar(self.root / "archive", docker_members(sketch()))
            import_file(self.layers, Import(path, name=name))

    def toolbox(self) -> Toolbox:
        # No tool here stores a file.
        return Toolbox(self.engine, StagePublish(self.engine.files, cast("FileStore", None)))

    async def tool(self, sandbox: AgentSandbox, name: str, **given: Any) -> Answer:
        context = RunContext("run_a", "tester", sandbox=sandbox)
        told = await self.toolbox().call(f"sandbox_{name}", given, context)
        return _of_tool(told)

    async def mcp(self, mode: ToolMode, name: str, **given: Any) -> Answer:
        told = await ClientCaller(self.toolbox(), mode).call(f"sandbox_{name}", given)
        return _of_tool(told)

    async def create(self, **options: Any) -> Answer:
        info = await self.engine.create(CreateRequest(SandboxOptions(**options)))
        return info.image, info.warnings

    async def run(self, runtime: str, **options: Any) -> Answer:
        result = await self.engine.run(RunRequest("", runtime, options=SandboxOptions(**options)))
        return result.image, result.warnings

    async def pooled(self, image: str | None) -> Answer:
        """Return the image of a sandbox that the pool keeps ready, by what it serves."""
        await self.engine.recover()
        info = await self.engine.create(CreateRequest(SandboxOptions(image=image)))
        assert info.acquire_source == "pool", info.acquire_detail
        return info.image, info.warnings

    async def asked(self, method: str, path: str, body: dict[str, Any]) -> Answer:
        async with AsyncExitStack() as stack:
            routes = await stack.enter_async_context(open_e2b(b"k" * 32, {}))
            daemon = await stack.enter_async_context(
                booked(self.engine, self.root / "data", more=routes)
            )
            if path.startswith("/e2b"):
                status, told = await E2b(daemon).ask(method, path[4:], body)
                if status != 201:
                    return _code_of(told["message"]), ()
                info = await self.engine.get(told["sandboxID"])
                return info.image, info.warnings
            reply = await daemon.ask(method, path, body, headers=AS_OPERATOR)
            if reply.status >= 400:
                return reply.json["code"], ()
            return reply.json["image"], tuple(reply.json["warnings"])


Answer = tuple[str, tuple[str, ...]]


def _of_tool(told: Mapping[str, Any]) -> Answer:
    if "image" not in told:
        return told["code"], ()
    return told["image"], tuple(told.get("warnings", ()))


def _code_of(message: str) -> str:
    return "IMAGE_NOT_FOUND" if "in the store" in message else message


# Path, the alias of its image, and whether the request names that image.
PATHS: Final[dict[str, tuple[str, bool, Callable[[Scene], Awaitable[Answer]]]]] = {
    "create": ("linux", False, lambda s: s.create()),
    "create with an alias": ("python", True, lambda s: s.create(image="python")),
    "one-shot": ("python", False, lambda s: s.run("python")),
    "one-shot of bash": ("linux", False, lambda s: s.run("bash")),
    "one-shot with an alias": ("python", True, lambda s: s.run("python", image="python")),
    "agent in compute mode": (
        "python",
        False,
        lambda s: s.tool(AgentSandbox(runtime="python"), "run", code=""),
    ),
    "agent in code mode": ("linux", False, lambda s: s.tool(AgentSandbox("code"), "open")),
    "agent in code mode with a runtime": (
        "python",
        True,
        lambda s: s.tool(AgentSandbox("code", "python3"), "open"),
    ),
    "MCP tool in compute mode": ("python", False, lambda s: s.mcp("compute", "run", code="")),
    "MCP tool in code mode": ("linux", False, lambda s: s.mcp("code", "open")),
    "POST /v1/run": ("python", False, lambda s: s.asked("POST", "/v1/run", {"code": ""})),
    "POST /v1/sessions": ("linux", False, lambda s: s.asked("POST", "/v1/sessions", {})),
    "POST /v1/sessions with an alias": (
        "python",
        True,
        lambda s: s.asked("POST", "/v1/sessions", {"image": "python"}),
    ),
    "E2B's default template": (
        "linux",
        False,
        lambda s: s.asked("POST", "/e2b/sandboxes", {"templateID": "base"}),
    ),
    "E2B's template with an alias": (
        "python",
        True,
        lambda s: s.asked("POST", "/e2b/sandboxes", {"templateID": "python"}),
    ),
    "pool kind": ("linux", False, lambda s: s.pooled(None)),
    "pool kind with an alias": ("python", True, lambda s: s.pooled("python")),
}


@pytest.mark.promise("P50")
@pytest.mark.parametrize("backend", ["unisolated", "docker"])
@pytest.mark.parametrize("case", ["stored", "missing", "strict"])
@pytest.mark.parametrize("path", PATHS)
async def test_every_path_gives_the_image_of_the_rule(tmp_path, path, case, backend):
    alias, named, ask = PATHS[path]
    kind = PoolKind(SandboxOptions(image=alias if named else None))
    scene = Scene(tmp_path, backend, case, (kind,) if path.startswith("pool kind") else ())
    await asyncio.to_thread(scene.fill)
    target = TARGETS[alias]
    expected: Answer
    if case == "stored":
        expected = (target, ())
    elif case == "missing" and backend == "unisolated":
        warning = f"alias {alias} ({target}) resolved to the host image"
        expected = ("host", (warning,) if named else ())
    else:
        expected = ("IMAGE_NOT_FOUND", ())
    try:
        assert await _answer(ask, scene) == expected
    finally:
        for info in await scene.engine.list(all=True):
            await scene.engine.destroy(info.id)
        await scene.engine.aclose()


async def _answer(ask: Callable[[Scene], Awaitable[Answer]], scene: Scene) -> Answer:
    try:
        return await ask(scene)
    except SandkastenError as exc:
        return exc.code, ()


@pytest.mark.parametrize(
    ("options", "runtime", "default", "expected"),
    [
        ({"image": "a:1"}, "python", "b:1", ("a:1",)),
        ({}, "python", "b:1", ("b:1", "python")),
        ({}, "node", None, ("node", "host")),
        ({}, None, None, ("linux", "host")),
        ({"pip_packages": ("six",)}, None, None, ("python", "host")),
        ({"npm_packages": ("left-pad",)}, None, None, ("node", "host")),
        ({}, None, "host", ("host", "linux")),
        ({}, "host", None, ("host", "linux")),
    ],
)
async def test_a_request_without_an_image_means_the_default_or_what_it_runs(
    options, runtime, default, expected
):
    request = CreateRequest(SandboxOptions(**options), runtime_image=runtime)
    assert wanted_images(request, default) == expected


async def test_the_host_is_used_where_the_allow_list_has_only_that(tmp_path):
    scene = Scene(tmp_path, "unisolated", "missing")
    scene.engine = Engine(
        backends={"unisolated": UnisolatedBackend()},
        default_backend="unisolated",
        store=MemoryStore(),
        images=Images(scene.layers, allowed=["host"]),
        policy=Policy(),
        clock=SystemClock(),
    )
    assert await scene.create() == ("host", ())
    assert await _answer(lambda s: s.create(image="linux"), scene) == ("FORBIDDEN", ())
    await scene.engine.aclose()
