"""The network of a container whose namespaces we cannot enter: two containers make it.

`<id>-inside` shares the network and process namespaces of the sandbox. It prepares the network,
passes the sockets on and ends with the sandbox. `<id>-egress` is in the network of the engine's
machine and runs the egress process. Both have nothing but our programs and their own volume,
and depend on no daemon.
"""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import time
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import BackendUnavailable, Busy, SandboxLost
from sandkasten_docker import resource_names
from sandkasten_docker.container_config import ContainerMount, labels
from sandkasten_docker.container_network import inspection_refusal
from sandkasten_docker.docker_engine.docker_client import DockerClient, Refused, translated
from sandkasten_docker.docker_engine.exec_stream import ExecStream
from sandkasten_docker.docker_engine.workspace_mode import PROBE_IMAGE
from sandkasten_runtime.linux import egress
from sandkasten_runtime.linux.launcher import trouble

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.model.sandbox.inspection import Inspection
    from sandkasten.model.sandbox.network_policy import NetworkCounts, NetworkPolicy
    from sandkasten_runtime.linux.trust_files import Authority

_PLACE: Final = "/net"
_CONTROL: Final = f"{_PLACE}/{egress.CONTROL}"
_RELAY: Final = (resource_names.RUNNER_PATH, "--relay", _CONTROL)
# It is the only process in its container.
_USER: Final = 65534
_MEMORY: Final = 64 << 20
# Inspected requests and answers pass through its memory: up to half a MB for each of the 256
# connections at once, and a body with a placeholder, up to 1 MB, is held whole.
_INSPECTING_MEMORY: Final = 256 << 20
_PIDS: Final = 16
_MAX_ANSWER: Final = 1 << 16
_MAX_RECORDS: Final = 4 << 20
_FIRST: Final = b'"seq":1,'
# On a machine that may be distant, and through a process that the engine starts.
_START_S, _ANSWER_S, _READ_S, _AGAIN_S = 20.0, 10.0, 5.0, 0.05
# To open files of the volume, and to become another user.
_BASE: Final = ("DAC_OVERRIDE", "SETGID", "SETUID")


class EgressContainers:
    """The two containers of one sandbox."""

    def __init__(self, api: DockerClient, sandbox_id: SandboxId) -> None:
        self._api = api
        self._id = sandbox_id
        self._egress, self._inside = resource_names.network_containers(sandbox_id)

    async def start(
        self,
        container: str,
        programs: ContainerMount,
        owner: str,
        spec: CellSpec,
        authority: Authority | None,
    ) -> None:
        """Give a container that has just started its network.

        The key of the authority and the values of secrets are standard input of a command in the
        egress container, which the engine neither stores nor logs.
        """
        own = labels(resource_names.CELL, owner, self._id)
        volume = resource_names.egress_volume_name(self._id)
        mounts = (programs, ContainerMount("volume", volume, _PLACE))
        try:
            await self._api.make_volume(volume, own)
            outside = _config("take", {"NetworkMode": "host"}, _BASE, mounts, own)
            if authority is not None:
                # No swap: values must not be written to a disk.
                size = {"Memory": _INSPECTING_MEMORY, "MemorySwap": _INSPECTING_MEMORY}
                outside["HostConfig"].update(size)
            await self._api.create(self._egress, outside)
            packed = await asyncio.to_thread(_packed, spec)
            await self._api.put(self._egress, _PLACE, packed)
            shared = f"container:{container}"
            joined = {"NetworkMode": shared, "PidMode": shared}
            added = (*_BASE, "NET_ADMIN", "NET_BIND_SERVICE")
            await self._api.create(self._inside, _config("give", joined, added, mounts, own))
            await self._api.start(self._egress)
            await self._api.start(self._inside)
        except Refused as exc:
            raise translated(exc, f"the network of sandbox {self._id} could not be made") from exc
        await self._await_start()
        if authority is not None and spec.inspection is not None:
            await self._ask(egress.inspection_command(authority, spec.inspection))

    async def _await_start(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                await self._ask({})
            except (Busy, SandboxLost) as exc:
                # The container inside ends as well, without an error, when the egress does.
                for name in (self._egress, self._inside):
                    await self._check(name)
                if time.monotonic() > deadline:
                    raise BackendUnavailable(exc.message, hint="run sandkasten doctor") from exc
            else:
                return
            await asyncio.sleep(_AGAIN_S)

    async def _check(self, name: str) -> None:
        """Raise what a container that has ended wrote."""
        try:
            state = (await self._api.inspect(name)).get("State", {})
            if state.get("Running"):
                return
            log = (await self._api.logs(name)).strip()
        except Refused as exc:
            raise translated(exc, f"the network of sandbox {self._id} could not be made") from exc
        try:
            error = json.loads(log)["error"]
            raise trouble(str(error["step"]), str(error["message"]), int(error["errno"]))
        except (ValueError, KeyError, TypeError) as exc:
            reason = log[-300:] or f"its program ended with status {state.get('ExitCode')}"
            raise BackendUnavailable(
                f"the network of sandbox {self._id} could not be made: {reason}",
                hint="run sandkasten doctor",
            ) from exc

    async def change(
        self, policy: NetworkPolicy, reachable: Sequence[str], inspection: Inspection | None
    ) -> None:
        # The operator may have changed the address since the sandbox was created.
        refusal = inspection_refusal(self._api.address)
        if refusal is not None and inspection is not None and inspection.secrets:
            raise refusal
        await self._ask(egress.change_command(policy, reachable, inspection))

    async def cut(self) -> bool:
        """See `ports.Networked`. Its container stays, with the records."""
        try:
            await self._api.kill(self._egress)
        except Refused as exc:
            if exc.not_there or exc.conflict:
                return True
            raise translated(exc, f"the network of sandbox {self._id} cannot be closed") from exc
        return True

    async def counts(self) -> NetworkCounts:
        """Return the counters, also after the end of the sandbox, while its volume exists."""
        try:
            return egress.counts_in(await self._ask({}, _READ_S))
        except SandboxLost:
            counts = await asyncio.to_thread(egress.final_counts_in, await self._files())
            if counts is None:
                raise
            return counts

    async def records(self, after: int, since: float) -> Sequence[Mapping[str, Any]]:
        return await asyncio.to_thread(egress.records_in, await self._files(), after, since)

    async def _files(self) -> list[bytes]:
        """Return the content of the files that have records."""
        contents: list[bytes] = []
        for name in egress.RECORDS:
            path = f"{_PLACE}/{name}"
            try:
                content = await self._api.content_of(self._egress, path, _MAX_RECORDS) or b""
            except Refused as exc:
                if exc.not_there:
                    break
                raise translated(exc, "the log of a network cannot be read") from exc
            contents.append(content)
            if _FIRST in content.partition(b"\n")[0] or not content:
                break  # the second file is used after the first one was full
        return contents

    async def _ask(self, command: dict[str, object], within_s: float = _ANSWER_S) -> dict[str, Any]:
        try:
            async with asyncio.timeout(within_s):
                answer = json.loads(await self._exchange(json.dumps(command).encode() + b"\n"))
        except TimeoutError as exc:
            raise egress.silent(self._id, within_s) from exc
        except (Refused, OSError, ValueError) as exc:
            raise SandboxLost(
                f"the network of sandbox {self._id} does not answer", hint="create a new sandbox"
            ) from exc
        if not isinstance(answer, dict) or "error" in answer:
            raise SandboxLost(
                f"the network of sandbox {self._id} refused a command", hint="create a new sandbox"
            )
        return answer

    async def _exchange(self, line: bytes) -> bytes:
        stream = ExecStream(await self._api.run_stream(self._egress, _RELAY, "0:0"))
        try:
            await stream.send(line)
            answer = b""
            while not answer.endswith(b"\n") and len(answer) < _MAX_ANSWER:
                part = await stream.receive(_MAX_ANSWER)
                if not part:
                    break
                answer += part
            return answer
        finally:
            await stream.aclose()


def _config(
    plan: str,
    namespaces: Mapping[str, str],
    added: Sequence[str],
    mounts: Sequence[ContainerMount],
    own: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "Image": f"{PROBE_IMAGE}:latest",
        "Entrypoint": [f"{resource_names.BIN_DIR}/launch", f"{_PLACE}/{plan}"],
        "Cmd": [],
        "User": "0:0",
        "Labels": dict(own),
        "HostConfig": {
            **namespaces,
            # The namespaces of a sandbox with mapped ids are not ours to change otherwise.
            "UsernsMode": "host",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "CapAdd": list(added),
            "SecurityOpt": ["no-new-privileges:true"],
            "Memory": _MEMORY,
            "PidsLimit": _PIDS,
            "Mounts": [mount.to_json() for mount in mounts],
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "16k", "max-file": "1"}},
            "RestartPolicy": {"Name": "no"},
        },
    }


def _packed(spec: CellSpec) -> bytes:
    """Return the plans of both containers and the configuration of the egress process as a tar."""
    network = {
        "program": f"{resource_names.BIN_DIR}/egress",
        "id": _USER,
        "control_fd": 0,
        "config": f"{_PLACE}/{egress.CONFIG}",
        "records": [f"{_PLACE}/{name}" for name in egress.RECORDS],
        "device": False,
    }
    passed = f"{_PLACE}/passed"
    # Without servers of the operator, those of the engine's machine are added there.
    config = {**egress.config(spec.network, spec.ceiling), "servers": list(spec.ceiling.servers)}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in (
            ("give", {"give": passed}),
            ("take", {"take": passed, "control": _CONTROL, "network": network}),
            (egress.CONFIG, config),
        ):
            data = json.dumps(content).encode()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o600
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
