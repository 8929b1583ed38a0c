"""A Pod with an egress process: its rules, counters and records. Implements `ports.Networked`."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import SandboxLost
from sandkasten.model.sandbox.inspection import created_without_inspection
from sandkasten_kubernetes.cell import KubernetesCell
from sandkasten_runtime.linux import egress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.sandbox.inspection import Inspection
    from sandkasten.model.sandbox.network_policy import NetworkCounts, NetworkPolicy

_ANSWER_S: Final = 10.0
_READ_S: Final = 5.0
_PART_BYTES: Final = 64 * 1024
_MOST_BYTES: Final = 1 << 20


class NetworkedCell(KubernetesCell):
    """A Pod of the class `rules`."""

    async def change_network(
        self,
        policy: NetworkPolicy,
        reachable: Sequence[str],
        inspection: Inspection | None = None,
    ) -> None:
        if inspection is not None:
            raise created_without_inspection(self.id)
        await self._ask(egress.change_command(policy, reachable))

    async def cut_network(self) -> bool:
        """See `ports.Networked`. No other container of the Pod can end the egress container."""
        return False

    async def network_counts(self) -> NetworkCounts:
        return egress.counts_in(await self._ask({}, _READ_S))

    async def network_records(self, after: int, since: float = 0.0) -> Sequence[Mapping[str, Any]]:
        records: list[Mapping[str, Any]] = []
        while True:
            # An answer has some of them, so that it is never large.
            answer = await self._ask({"after": after, "since": since}, _READ_S)
            part = answer.get("records") or []
            if not part:
                return records
            records += part
            after = int(part[-1]["seq"])

    async def _ask(self, command: dict[str, object], within_s: float = _ANSWER_S) -> dict[str, Any]:
        try:
            async with asyncio.timeout(within_s):
                answer = json.loads(await self._exchange(json.dumps(command).encode() + b"\n"))
        except (OSError, ValueError) as exc:
            # Also TimeoutError.
            raise await self._no_way_in(f"its network: {exc}") from exc
        if not isinstance(answer, dict) or "error" in answer:
            raise SandboxLost(
                f"the network of sandbox {self.id} refused a command", hint="create a new sandbox"
            )
        return answer

    async def _exchange(self, line: bytes) -> bytes:
        stream = await self.dial_network()
        answer = b""
        try:
            await stream.send(line)
            while not answer.endswith(b"\n") and len(answer) < _MOST_BYTES:
                part = await stream.receive(_PART_BYTES)
                if not part:
                    break
                answer += part
        finally:
            await stream.aclose()
        return answer
