"""Self-test before the first sandbox of a daemon: make a temporary Pod and look at it from inside.

A user's command reports what it sees of itself, by the runner's own program, and the gate, which
has the same network, tries to reach another Pod and the API server: where no controller enforces a
NetworkPolicy, it succeeds. `deviations` and `open_addresses` are pure.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import BackendUnavailable, IsolationRefused
from sandkasten_kubernetes import pod_names, pod_network
from sandkasten_runtime.wire.call import OutputChunk
from sandkasten_runtime.wire.channel import Channel
from sandkasten_runtime.wire.messages import decode_exec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten_kubernetes.api.cluster_client import ClusterClient
    from sandkasten_kubernetes.cell import KubernetesCell

TRIAL: Final = "trial_"
_DEADLINE_S: Final = 30.0
_STDOUT: Final = 1
_MOST_BYTES: Final = 256 * 1024
_CAPABILITY_SETS: Final = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


async def examine(cell: KubernetesCell, program: str) -> None:
    """Raise IsolationRefused if the sandbox is less closed than required."""
    try:
        async with asyncio.timeout(_DEADLINE_S):
            problems = deviations(await _posture(cell, program))
    except TimeoutError as exc:
        raise BackendUnavailable("a new sandbox does not answer in time") from exc
    if problems:
        raise IsolationRefused(
            f"a new sandbox is less isolated than required: {'; '.join(problems)}",
            hint="check backends.kubernetes.seccomp_profile and the RuntimeClass; no sandbox is "
            "created until this is fixed",
            deviations=problems,
        )


async def examine_network(
    client: ClusterClient, cell: KubernetesCell, program: str, addresses: Sequence[str]
) -> None:
    """Raise IsolationRefused if the Pod can reach one of the addresses."""
    command = (program, "--reach", *addresses)
    try:
        async with asyncio.timeout(_DEADLINE_S):
            name = pod_names.pod_name(cell.id)
            # The one that only the NetworkPolicy keeps from an address.
            by_rule = cell.network_class == pod_network.RULES
            container = pod_names.EGRESS_CONTAINER if by_rule else pod_names.GATE_CONTAINER
            stream = await client.stream(name, container, command)
            text = b""
            try:
                while (part := await stream.receive(_MOST_BYTES)) and len(text) < _MOST_BYTES:
                    text += part
            finally:
                await stream.aclose()
    except OSError as exc:
        # Also TimeoutError.
        raise BackendUnavailable(
            f"the network of a new sandbox cannot be tested: {exc or 'no answer in time'}",
            hint="try again; the API server must allow pods/exec",
        ) from exc
    reached = open_addresses(text.decode(errors="replace"))
    if not reached:
        return
    raise IsolationRefused(
        f"the network of a new sandbox is open: it reaches {', '.join(reached)}",
        hint=pod_network.policy_hint(cell.network_class),
        deviations=reached,
    )


def open_addresses(text: str) -> list[str]:
    """Return the addresses that the gate reached. Raise BackendUnavailable if it tried none."""
    lines = [line.split() for line in text.splitlines()]
    tried = [line for line in lines if len(line) == 2 and line[0] in ("open", "closed")]
    if not tried:
        raise BackendUnavailable(
            f"the network of a new sandbox cannot be tested: {text[:300]!r}",
            hint="check backends.kubernetes.image_programs_dir",
        )
    return [address for verdict, address in tried if verdict == "open"]


def deviations(posture: Mapping[str, Any]) -> list[str]:
    """Return everything that is less closed than required; empty is good."""
    status: Mapping[str, str] = posture.get("status") or {}
    problems = [
        f"{name} is not empty: {status.get(name)}"
        for name in _CAPABILITY_SETS
        if int(status.get(name) or "1", 16)
    ]
    problems += [
        f"{field} is 0" for field in ("Uid", "Gid") if "0" in (status.get(field) or "0").split()
    ]
    if status.get("NoNewPrivs") != "1":
        problems.append("no_new_privs is not set")
    if status.get("Seccomp") != "2":
        problems.append("no seccomp filter is in force")
    groups = set((status.get("Groups") or "").split()) - set((status.get("Gid") or "").split())
    if groups:
        problems.append(f"supplementary groups were inherited: {' '.join(sorted(groups))}")
    if any(int(fd) > 2 for fd in posture.get("descriptors") or ()):
        problems.append(f"descriptors were inherited: {posture['descriptors']}")
    return problems


async def _posture(cell: KubernetesCell, program: str) -> Mapping[str, Any]:
    channel = await Channel.open(await cell.dial())
    try:
        fields: dict[str, Any] = {
            "exec_id": "trial", "argv": [program, "--posture"], "follow": False,
        }  # fmt: skip
        await channel.call("exec.start", fields)
        wait = {"exec_id": "trial", "timeout_ms": int(_DEADLINE_S * 1000)}
        ended = decode_exec(await channel.call("exec.wait", wait))
        text = bytearray()
        async with channel.stream("exec.output", {"exec_id": "trial"}) as call:
            async for item in call:
                if isinstance(item, OutputChunk) and item.source == _STDOUT:
                    text += item.data
    finally:
        await channel.aclose()
    if ended.exit_code != 0:
        raise BackendUnavailable(
            f"the runner's own program fails inside with status {ended.exit_code}",
            hint="the node may have another architecture than backends.kubernetes.runner_image",
        )
    posture: Mapping[str, Any] = json.loads(text)
    return posture
