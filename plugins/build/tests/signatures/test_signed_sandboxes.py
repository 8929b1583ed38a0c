"""Signatures are required by a running daemon: every way to start something from an image."""

from __future__ import annotations

import asyncio
import io
import json
import time
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests import imagekit
from tests.daemon.process import ask, cleared, running
from tests.images import registries, signing
from tests.images.signing import Authority, key, pem, public, written
from tests.models.server import Answer, Call, ScriptedModel
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.daemon.process import DaemonProcess
    from tests.images.registries import Made, Running

pytestmark = [pytest.mark.promise("P76"), pytest.mark.timeout(300)]

AGENT = """---
model: scripted
metadata: {{name: signed}}
sandbox: {{mode: code, image: "{image}"}}
---
You are the agent.
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory) -> Iterator[Running]:
    with registries.docker_registry(tmp_path_factory.mktemp("registry")) as started:
        yield started


@lru_cache
def busybox(mark: str) -> Made:
    """Return an image that runs, with a digest of its own."""
    layers = (imagekit.busybox_tar().read_bytes(), registries.layer({"mark": mark.encode()}))
    return registries.image(*layers, architecture=registries.HERE, env=("PATH=/bin",))


def played(request: Any) -> Answer:
    if request.turn == 0:
        return Answer(calls=[Call("sandbox_exec", {"command": ["cat", "/mark"]})])
    return Answer(f"it said {request.last.get('stdout')}")


class Scene:
    """A data directory, its settings, a model, and a private key whose signatures are required."""

    def __init__(self, root: Path, running: Running, model: ScriptedModel) -> None:
        self.root = root
        self.registry = running
        self.model = model
        self.private = key()
        self.rules: list[dict[str, Any]] = [
            {
                "images": [f"{running.host}/team/*", "sha256:*"],
                "key": written(root / "cosign.pub", public(self.private)),
            }
        ]
        self.more: dict[str, Any] = {}

    async def push(self, name: str, *, mark: str = "one", signed: bool = False) -> str:
        """Push an image and return its full name."""
        return await asyncio.to_thread(self._push, name, mark, signed)

    def _push(self, name: str, mark: str, signed: bool) -> str:
        image = busybox(f"{self.root.name} {mark}")
        repository, _, tag = name.partition(":")
        registries.push(self.registry.base, repository, tag, image)
        if signed:
            signing.sign(self.registry, repository, image.digest, self.private)
        return f"{self.registry.host}/{name}"

    def set_agent(self, image: str) -> None:
        file = self.root / "agents" / "signed.prompt"
        file.parent.mkdir(exist_ok=True)
        file.write_text(AGENT.format(image=image))

    @asynccontextmanager
    async def daemon(self) -> AsyncIterator[Asker]:
        tree: dict[str, Any] = {
            "backend": "local",
            "images": {"registries": {self.registry.host: {"insecure": True}}},
            "policy": {"images": {"signatures": self.rules}},
            **self.more,
        }
        file = self.root / "settings.yaml"
        file.write_text(json.dumps(tree))
        environ = {
            "HOME": str(self.root),
            "SANDKASTEN_AGENTS_DIRS": str(self.root / "agents"),
            "SANDKASTEN_MODELS_BASE_URL": self.model.base_url,
            "SANDKASTEN_MODELS_API_KEY": "sk-test-key",
            "SANDKASTEN_CONFIG": str(file),
        }
        async with (
            aiohttp.ClientSession() as http,
            running(self.root / "data", environ=environ) as daemon,
        ):
            yield Asker(self, http, daemon)


class Asker:
    def __init__(self, scene: Scene, http: aiohttp.ClientSession, daemon: DaemonProcess) -> None:
        self.scene = scene
        self.http = http
        self.daemon = daemon

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return await ask(self.http, method, f"{self.daemon.url}{path}", body)

    async def create(self, image: str | None) -> tuple[int, Any]:
        return await self.ask("POST", "/v1/sessions", {} if image is None else {"image": image})

    async def pull(self, image: str) -> tuple[int, Any]:
        status, answer = await self.ask("POST", "/v1/images/pull", {"name": image})
        return status, answer

    async def mark(self, session: str) -> str:
        body = {"command": ["cat", "/mark"]}
        _, answer = await self.ask("POST", f"/v1/sessions/{session}/exec", body)
        return str(answer["stdout"])

    async def agent(self) -> dict[str, Any]:
        status, answer = await self.ask("POST", "/execute", {"agent_name": "signed", "task": "go"})
        if status != 202:
            return {"status": "failed", "error": answer}
        run: dict[str, Any] = {}

        deadline = time.monotonic() + PATIENCE_S
        while not run.get("done"):
            assert time.monotonic() < deadline, f"the end of the run: {run}"
            await asyncio.sleep(0.05)
            _, row = await self.ask("GET", f"/runs/{answer['run_id']}")
            run.update(row)
        return run

    async def refused_everywhere(self, image: str, why: str) -> None:
        """Every way to start the image is refused with the same error, and nothing is there."""
        run = {"image": image, "runtime": "sh", "code": "cat /mark"}
        for status, answer in (
            await self.create(image),
            await self.ask("POST", "/v1/run", run),
        ):
            assert (status, answer["error_code"]) == (403, "UNTRUSTED_IMAGE"), answer
            assert why in answer["message"], answer
            assert answer["hint"]
            assert answer["details"]["rule"] == "policy.images.signatures"
        count = len(self.scene.model.requests)
        self.scene.set_agent(image)
        ended = await self.agent()
        assert ended["status"] == "failed", ended
        assert "UNTRUSTED_IMAGE" in json.dumps(ended["error"]), ended
        assert len(self.scene.model.requests) == count
        _, sessions = await self.ask("GET", "/v1/sessions")
        assert sessions == []

    async def images(self) -> list[str]:
        _, answer = await self.ask("GET", "/v1/images")
        return [name for image in answer["images"] for name in image["names"]]


@pytest.fixture
async def scene(tmp_path: Path, registry: Running) -> AsyncIterator[Scene]:
    async with ScriptedModel(played) as model:
        yield Scene(tmp_path, registry, model)
    await cleared(tmp_path / "data")


async def test_a_signed_image_starts_in_every_way_and_after_a_restart(scene: Scene):
    name = await scene.push(f"team/{scene.root.name}:1", signed=True)
    scene.set_agent(name)
    async with scene.daemon() as there:
        status, answer = await there.create(name)
        assert status == 201, answer
        assert await there.mark(answer["id"]) == f"{scene.root.name} one"
        run = {"image": name, "runtime": "sh", "code": "cat /mark"}
        status, answer = await there.ask("POST", "/v1/run", run)
        assert (status, answer["stdout"]) == (200, f"{scene.root.name} one"), answer
        ended = await there.agent()
        assert ended["status"] == "completed", ended
        assert f"{scene.root.name} one" in json.dumps(ended["output"]), ended
        assert (await there.pull(name))[0] == 200
    # By another daemon, with the signatures of the store.
    scene.more = {"images": {"pull": "never"}}
    async with scene.daemon() as there:
        status, answer = await there.create(name)
        assert status == 201, answer
    # And with rules that no longer accept them.
    scene.rules[0]["key"] = written(scene.root / "new.pub", public(key()))
    async with scene.daemon() as there:
        await there.refused_everywhere(name, "it was not made by this key")


async def test_an_unsigned_image_starts_in_no_way(scene: Scene):
    name = await scene.push(f"team/{scene.root.name}:1")
    async with scene.daemon() as there:
        await there.refused_everywhere(name, "has no signature")
        status, answer = await there.pull(name)
        assert (status, answer["error_code"]) == (403, "UNTRUSTED_IMAGE")
        assert await there.images() == []
        # Another repository than that of the rule.
        other = await scene.push(f"other/{scene.root.name}:1", signed=True)
        await there.refused_everywhere(other, "no rule of policy.images.signatures covers")


async def test_a_tag_that_changes_after_it_was_signed_is_refused(scene: Scene):
    repository = f"team/{scene.root.name}"
    name = await scene.push(f"{repository}:1", signed=True)
    first = busybox(f"{scene.root.name} one")
    # The same tag, another image; and the signature of the first one beside it.
    await scene.push(f"{repository}:1", mark="two")
    second = busybox(f"{scene.root.name} two")
    payload = signing.payload(first.digest)
    signing.sign(scene.registry, repository, second.digest, scene.private, said=payload)
    async with scene.daemon() as there:
        await there.refused_everywhere(name, f"it signs '{first.digest}'")
        # The signed one by its digest is still accepted.
        full = f"{name.rpartition(':')[0]}@{first.digest}"
        status, answer = await there.create(full)
        assert status == 201, answer
        assert await there.mark(answer["id"]) == f"{scene.root.name} one"


@pytest.mark.long(reason="`make test` has an unsigned image of a registry")
async def test_a_stored_image_without_a_signature_is_refused(scene: Scene, tmp_path: Path):
    name = await scene.push(f"team/{scene.root.name}:1")
    rules, scene.rules = scene.rules, []
    async with scene.daemon() as there:
        # Before there are rules, everything is accepted.
        status, answer = await there.create(name)
        assert status == 201, answer
        await there.ask("DELETE", f"/v1/sessions/{answer['id']}")
        _, images = await there.ask("GET", "/v1/images")
        the_id = images["images"][0]["id"]
        for new in ("mine:1", f"{scene.registry.host}/team/mine:1"):
            body = {"name": name, "new": new}
            status, answer = await there.ask("POST", "/v1/images/tag", body)
            assert status in (200, 201), answer
    scene.rules = rules
    host = scene.registry.host
    scene.more = {"images": {"pull": "never", "aliases": {"bash": name, "own": "mine:1"}}}
    async with scene.daemon() as there:
        await there.refused_everywhere(name, "has no signature")
        # Neither its id nor another name of it, nor an alias, which does not become the host.
        await there.refused_everywhere(the_id, "has no signature")
        await there.refused_everywhere(f"{host}/team/mine:1", "has no signature")
        await there.refused_everywhere("bash", "has no signature")
        await there.refused_everywhere("own", "no rule of")
        # An imported archive with a name that a rule covers.
        archive = imagekit.docker_archive(imagekit.busybox_tar())
        url = f"{there.daemon.url}/v1/images/import?name={host}/team/imported:1"
        async with there.http.post(url, data=io.BytesIO(archive.read_bytes())) as reply:
            assert reply.status in (200, 201), await reply.text()
        await there.refused_everywhere(f"{host}/team/imported:1", "has no signature")


async def test_only_the_allow_list_decides_about_the_host_image(scene: Scene):
    name = await scene.push(f"team/{scene.root.name}:1")
    async with scene.daemon() as there:
        status, answer = await there.create("host")
        assert (status, answer["image"]) == (201, "host"), answer
    scene.more = {"allowed_images": [name]}
    async with scene.daemon() as there:
        for image in ("host", "python"):
            status, answer = await there.create(image)
            assert (status, answer["error_code"]) == (403, "FORBIDDEN"), answer
        await there.refused_everywhere(name, "has no signature")


@pytest.mark.long(reason="`make test` has an unsigned image of a registry")
async def test_an_untrusted_default_image_is_not_replaced_by_another(scene: Scene):
    name = await scene.push(f"team/{scene.root.name}:1")
    scene.more = {"default_image": name}
    async with scene.daemon() as there:
        status, answer = await there.create(None)
        assert (status, answer["error_code"]) == (403, "UNTRUSTED_IMAGE"), answer
        assert (await there.ask("GET", "/v1/sessions"))[1] == []


async def test_a_keyless_signature_starts_a_sandbox_and_one_of_another_root_does_not(scene: Scene):
    authority, stranger = Authority(), Authority()
    scene.rules = [
        {
            "images": [f"{scene.registry.host}/team/*"],
            "identity": signing.IDENTITY,
            "issuer": signing.ISSUER,
            "root": written(scene.root / "root.pem", pem(authority.root)),
            "log_key": written(scene.root / "log.pub", public(authority.log)),
        }
    ]
    repository = f"team/{scene.root.name}"
    name = await scene.push(f"{repository}:1")
    image = busybox(f"{scene.root.name} one")
    async with scene.daemon() as there:
        signing.sign_keyless(scene.registry, repository, image, stranger)
        await there.refused_everywhere(name, "its entry is not of this transparency log")
        signing.sign_keyless(scene.registry, repository, image, authority)
        status, answer = await there.create(name)
        assert status == 201, answer
        assert await there.mark(answer["id"]) == f"{scene.root.name} one"


async def test_a_key_that_cannot_be_read_stops_the_daemon(scene: Scene):
    scene.rules[0]["key"] = str(scene.root / "missing.pub")
    with pytest.raises(AssertionError, match="missing.pub, which cannot be used"):
        async with scene.daemon():
            pass
