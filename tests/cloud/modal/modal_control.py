"""The control plane of the Modal test server: apps, images, and sandboxes that really run."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import string
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from tests.cloud.modal.modal_machines import Machine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_LETTERS: Final = string.ascii_letters + string.digits
_TOKEN_S: Final = 20 * 60
_PAGE: Final = 3
_RESULT: Final = api_pb2.GenericResult


@dataclass(slots=True)
class Rented:
    """A sandbox, as Modal keeps it."""

    id: str
    task_id: str
    app_id: str
    definition: api_pb2.Sandbox
    tags: dict[str, str]
    created_at: float
    env: dict[str, str]
    machine: Machine
    result: api_pb2.GenericResult | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class _Built:
    """An image: one that can be named, and the files that were copied into it."""

    tag: str
    mounts: tuple[str, ...] = ()


class ControlPlane:
    """Its methods are the calls, by their names in the protocol. `images`: the layers of each image
    that can be named, uppermost first.
    """

    def __init__(self, images: Mapping[str, Sequence[str]]) -> None:
        self.made: list[Rented] = []
        """Every sandbox that was ever started."""
        self.clock_s = 0.0
        """How far this server's clock is ahead."""
        self.url = ""
        """Where commands in sandboxes are served."""
        self.tokens: set[str] = set()
        """Those that were issued for streams and for calls."""
        self.watches: set[asyncio.Task[None]] = set()
        """They end with their sandboxes."""
        self._images = dict(images)
        self._built: dict[str, _Built] = {}
        self._blobs: dict[str, bytes] = {}
        self._mounts: dict[str, list[api_pb2.MountFile]] = {}
        self._apps: dict[str, str] = {}
        self._names: set[tuple[str, str]] = set()

    @property
    def running(self) -> list[Rented]:
        return [one for one in self.made if one.result is None]

    def _new_token(self) -> str:
        """Return a token whose end is told in this server's own time."""
        claims = {"exp": int(time.time() + self.clock_s + _TOKEN_S), "jti": new_name(8)}
        body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        made = f"e30.{body}.{new_name(8)}"
        self.tokens.add(made)
        return made

    async def ClientHello(self, _: Any) -> api_pb2.ClientHelloResponse:
        return api_pb2.ClientHelloResponse()

    async def AuthTokenGet(self, _: Any) -> api_pb2.AuthTokenGetResponse:
        return api_pb2.AuthTokenGetResponse(token=self._new_token())

    async def AppGetOrCreate(
        self, request: api_pb2.AppGetOrCreateRequest
    ) -> api_pb2.AppGetOrCreateResponse:
        app_id = self._apps.setdefault(request.app_name, "ap-" + new_name(22))
        return api_pb2.AppGetOrCreateResponse(app_id=app_id)

    async def EnvironmentGetOrCreate(
        self, request: api_pb2.EnvironmentGetOrCreateRequest
    ) -> api_pb2.EnvironmentGetOrCreateResponse:
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        name = request.deployment_name or "main"
        return api_pb2.EnvironmentGetOrCreateResponse(
            environment_id="en-" + new_name(22),
            metadata=api_pb2.EnvironmentMetadata(name=name, settings=settings),
        )

    async def ImageGetOrCreate(
        self, request: api_pb2.ImageGetOrCreateRequest
    ) -> api_pb2.ImageGetOrCreateResponse:
        image = request.image
        commands = list(image.dockerfile_commands)
        match commands:
            case ["FROM base", "COPY . /"]:
                base = self._built[image.base_images[0].image_id]
                built = _Built(base.tag, (*base.mounts, image.context_mount_id))
            case [only] if only.startswith("FROM "):
                built = _Built(only.removeprefix("FROM "))
            case _:
                raise GRPCError(Status.INVALID_ARGUMENT, f"not served here: {commands}")
        image_id = "im-" + new_name(22)
        if built.tag in self._images:
            self._built[image_id] = built
            result = _RESULT(status=_RESULT.GENERIC_STATUS_SUCCESS)
        else:
            told = f"Skopeo inspect failed for {built.tag}: manifest unknown"
            result = _RESULT(status=_RESULT.GENERIC_STATUS_FAILURE, exception=told)
        return api_pb2.ImageGetOrCreateResponse(
            image_id=image_id, result=result, metadata=api_pb2.ImageMetadata()
        )

    async def ImageFromId(self, request: api_pb2.ImageFromIdRequest) -> api_pb2.ImageFromIdResponse:
        if request.image_id not in self._built:
            raise GRPCError(Status.NOT_FOUND, f"Image {request.image_id} not found")
        return api_pb2.ImageFromIdResponse(
            image_id=request.image_id, metadata=api_pb2.ImageMetadata()
        )

    async def MountBatchedCheckExistence(
        self, request: api_pb2.MountBatchedCheckExistenceRequest
    ) -> api_pb2.MountBatchedCheckExistenceResponse:
        missing = [one for one in request.sha256_hex_hashes if one not in self._blobs]
        return api_pb2.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    async def MountPutFile(
        self, request: api_pb2.MountPutFileRequest
    ) -> api_pb2.MountPutFileResponse:
        if hashlib.sha256(request.data).hexdigest() != request.sha256_hex:
            raise GRPCError(Status.INVALID_ARGUMENT, "the content has another checksum")
        self._blobs[request.sha256_hex] = request.data
        return api_pb2.MountPutFileResponse(exists=True)

    async def MountGetOrCreate(
        self, request: api_pb2.MountGetOrCreateRequest
    ) -> api_pb2.MountGetOrCreateResponse:
        mount_id = "mo-" + new_name(22)
        self._mounts[mount_id] = list(request.files)
        return api_pb2.MountGetOrCreateResponse(
            mount_id=mount_id, handle_metadata=api_pb2.MountHandleMetadata()
        )

    async def SandboxCreateV2(
        self, request: api_pb2.SandboxCreateV2Request
    ) -> api_pb2.SandboxCreateV2Response:
        definition = request.definition
        key = (request.app_id, definition.name)
        if definition.name and key in self._names:
            raise GRPCError(Status.ALREADY_EXISTS, f"Sandbox {definition.name} already exists")
        if definition.open_ports.ports:
            raise GRPCError(Status.INVALID_ARGUMENT, "this test server has no tunnels")
        self._names.add(key)
        env: dict[str, str] = {}
        for source in request.secret_sources:
            env.update(source.env.contents)
        image = self._built[definition.image_id]
        files = {
            file.filename: (self._blobs[file.sha256_hex], file.mode or 0o644)
            for mount in (*image.mounts, *definition.mount_ids)
            for file in self._mounts[mount]
        }
        blocked = api_pb2.NetworkAccess.NetworkAccessType.BLOCKED
        machine = await Machine.started(
            self._images[image.tag],
            files,
            definition.entrypoint_args,
            env,
            network=definition.network_access.network_access_type != blocked,
        )
        rented = Rented(
            id="sb-01" + new_name(24),
            task_id="ta-01" + new_name(23) + "V",
            app_id=request.app_id,
            definition=definition,
            tags={one.tag_name: one.tag_value for one in request.tags},
            created_at=time.time() + self.clock_s + len(self.made) / 1e4,
            env=env,
            machine=machine,
        )
        self.made.append(rented)
        watch = asyncio.ensure_future(self._watch(rented))
        self.watches.add(watch)
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=rented.id,
            task_id=rented.task_id,
            metadata=api_pb2.SandboxHandleMetadata(app_id=request.app_id),
        )

    async def _watch(self, rented: Rented) -> None:
        """End the sandbox at its time limit, and note how it ended."""
        waiting = asyncio.ensure_future(rented.machine.wait())
        done, _ = await asyncio.wait({waiting}, timeout=rented.definition.timeout_secs)
        if not done:
            rented.result = _RESULT(status=_RESULT.GENERIC_STATUS_TIMEOUT)
            await rented.machine.end()
        code = await waiting
        if rented.result is None:
            status = _RESULT.GENERIC_STATUS_FAILURE if code else _RESULT.GENERIC_STATUS_SUCCESS
            rented.result = _RESULT(status=status, exitcode=code)
        self._names.discard((rented.app_id, rented.definition.name))
        rented.ended.set()

    def rented(self, sandbox_id: str) -> Rented:
        for one in self.made:
            if sandbox_id in (one.id, one.task_id):
                return one
        raise GRPCError(Status.NOT_FOUND, f"Sandbox {sandbox_id} not found")

    async def SandboxGetFromNameV2(
        self, request: api_pb2.SandboxGetFromNameRequest
    ) -> api_pb2.SandboxGetFromNameResponse:
        app_id = self._apps.get(request.app_name)
        for one in self.running:
            if (one.app_id, one.definition.name) == (app_id, request.sandbox_name):
                return api_pb2.SandboxGetFromNameResponse(
                    sandbox_id=one.id, metadata=api_pb2.SandboxHandleMetadata(app_id=one.app_id)
                )
        raise GRPCError(Status.NOT_FOUND, f"Sandbox {request.sandbox_name} not found")

    # Asked by the SDK when there is none of the newer kind.
    SandboxGetFromName = SandboxGetFromNameV2

    async def SandboxListV2(
        self, request: api_pb2.SandboxListRequest
    ) -> api_pb2.SandboxListResponse:
        wanted = {(one.tag_name, one.tag_value) for one in request.tags}
        found = [
            api_pb2.SandboxInfo(
                id=one.id,
                created_at=one.created_at,
                app_id=one.app_id,
                metadata=api_pb2.SandboxHandleMetadata(app_id=one.app_id),
            )
            for one in sorted(self.running, key=lambda one: -one.created_at)
            if one.app_id == request.app_id
            and wanted <= set(one.tags.items())
            and (not request.before_timestamp or one.created_at < request.before_timestamp)
        ]
        return api_pb2.SandboxListResponse(sandboxes=found[:_PAGE])

    async def SandboxTagsGetV2(
        self, request: api_pb2.SandboxTagsGetRequest
    ) -> api_pb2.SandboxTagsGetResponse:
        tags = self.rented(request.sandbox_id).tags.items()
        return api_pb2.SandboxTagsGetResponse(
            tags=[api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in tags]
        )

    async def SandboxWaitV2(
        self, request: api_pb2.SandboxWaitRequest
    ) -> api_pb2.SandboxWaitResponse:
        rented = self.rented(request.sandbox_id)
        if request.timeout:
            await asyncio.wait(
                {asyncio.ensure_future(rented.ended.wait())}, timeout=request.timeout
            )
        return api_pb2.SandboxWaitResponse(
            result=rented.result, metadata=api_pb2.SandboxHandleMetadata(app_id=rented.app_id)
        )

    async def SandboxTerminateV2(
        self, request: api_pb2.SandboxTerminateRequest
    ) -> api_pb2.SandboxTerminateResponse:
        rented = self.rented(request.sandbox_id)
        if rented.result is None:
            rented.result = _RESULT(status=_RESULT.GENERIC_STATUS_TERMINATED)
            await rented.machine.end()
            await rented.ended.wait()
        return api_pb2.SandboxTerminateResponse()

    async def SandboxGetTaskIdV2(
        self, request: api_pb2.SandboxGetTaskIdRequest
    ) -> api_pb2.SandboxGetTaskIdResponse:
        rented = self.rented(request.sandbox_id)
        if rented.result is not None:
            return api_pb2.SandboxGetTaskIdResponse(task_result=rented.result)
        return api_pb2.SandboxGetTaskIdResponse(task_id=rented.task_id)

    async def SandboxGetCommandRouterAccess(
        self, request: api_pb2.SandboxGetCommandRouterAccessRequest
    ) -> api_pb2.SandboxGetCommandRouterAccessResponse:
        if self.rented(request.sandbox_id).result is not None:
            raise GRPCError(Status.FAILED_PRECONDITION, "Sandbox has already finished")
        return api_pb2.SandboxGetCommandRouterAccessResponse(jwt=self._new_token(), url=self.url)


def new_name(length: int) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(length))
