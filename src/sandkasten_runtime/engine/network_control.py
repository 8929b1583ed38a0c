"""The network of a live sandbox: its rules, its counters, and its log of attempts.

A sandbox that was created without a network cannot get one later (UnsupportedByBackend). One that
was created with a network can be closed and opened again.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from sandkasten.errors import Busy, SandboxLost, UnsupportedByBackend
from sandkasten.model.ids import sandbox_id
from sandkasten.model.sandbox.network_policy import (
    NetworkAttempt,
    NetworkStatus,
    adopted_network,
    attempt,
    created_without_network,
)
from sandkasten.model.sandbox.network_refusals import not_public, suggested
from sandkasten.model.sandbox.sandbox_values import NetworkUsage
from sandkasten.ports import Networked
from sandkasten_runtime.engine.activity import activity
from sandkasten_runtime.engine.handles import check_not_paused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten.model.sandbox.inspection import Inspection
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.network_policy import NetworkCeiling, NetworkCounts, NetworkPolicy
    from sandkasten_runtime.engine.handles import Handle, Handles

_LOOK_EVERY_S: Final = 0.2


class NetworkControl:
    def __init__(self, handles: Handles, ceiling: NetworkCeiling) -> None:
        self._handles = handles
        self._ceiling = ceiling

    async def status(self, text: str) -> NetworkStatus:
        """Return rules and counters; zeros for a sandbox without a network, or where nothing
        counts.
        """
        handle = await self._handles.get(sandbox_id(text))
        if not isinstance(handle.cell, Networked):
            return NetworkStatus(handle.record.network)
        try:
            counts = await self._handles.network_totals.of(handle, handle.cell)
        except UnsupportedByBackend:
            return NetworkStatus()
        tried = await self.log(text)
        return NetworkStatus(
            handle.record.network,
            **asdict(counts),
            suggested=suggested(tried, self._ceiling.reachable),
            not_public=not_public(tried, self._ceiling.reachable),
        )

    async def usage(self, handle: Handle) -> NetworkUsage:
        """Return the mode of a live sandbox's network, and its traffic."""
        network = handle.record.network
        if network == "none":
            return NetworkUsage()
        if not isinstance(handle.cell, Networked):
            return NetworkUsage(mode="full")
        counts = await self._handles.network_totals.of(handle, handle.cell)
        rules = 0
        if isinstance(network, dict):
            rules = len(network.get("allow", ())) + len(network.get("deny", ()))
        return NetworkUsage(
            mode="rules" if rules else "full",
            rules=rules,
            connections=counts.open,
            rx_bytes=counts.bytes_in,
            tx_bytes=counts.bytes_out,
        )

    async def totals(self) -> NetworkCounts:
        """Return the counters of all sandboxes since this engine began."""
        return await self._handles.traffic()

    async def log(self, text: str, *, since_seq: int = 0) -> list[NetworkAttempt]:
        """Return the attempts after a sequence number; none for a sandbox without a network."""
        handle = await self._handles.get(sandbox_id(text))
        if not isinstance(handle.cell, Networked):
            return []
        return [attempt(row) for row in await handle.cell.network_records(since_seq)]

    async def follow(self, text: str, *, since_seq: int = 0) -> AsyncIterator[NetworkAttempt]:
        """Yield attempts as they happen, until the sandbox ends."""
        while True:
            for entry in await self.log(text, since_seq=since_seq):
                since_seq = entry.seq
                yield entry
            await asyncio.sleep(_LOOK_EVERY_S)

    async def change(
        self, handle: Handle, policy: NetworkPolicy, inspection: Inspection | None
    ) -> None:
        """Send a policy, also one that is recorded already: the record has what was sent last.

        Raise Conflict for a paused sandbox. Its egress process is frozen and would apply the policy
        after the caller got the error. A network that cannot be changed is cut, so that earlier
        rules are not in force any more; that is what a closing policy asks for, and SandboxLost for
        any other.
        """
        check_not_paused(handle.record)
        try:
            if not isinstance(handle.cell, Networked):
                if handle.record.network != "none":
                    raise _unchangeable(handle.record.id)
                raise created_without_network(handle.record.id)
            await self._send(handle.cell, handle.record.id, policy, inspection)
        except UnsupportedByBackend:
            # It was created without a network, and the policy is none: nothing to change.
            if not (policy.closed and handle.record.network == "none"):
                raise

    def recorded(self, record: Record) -> NetworkPolicy:
        """Return the recorded policy under the current settings of the operator."""
        return adopted_network(record.network, self._ceiling)

    async def adopt(self, record: Record) -> None:
        """Apply the operator's settings to the sandbox of an earlier process."""
        if record.network == "none":
            return
        with activity(False):
            handle = await self._handles.get(record.id)
        if isinstance(handle.cell, Networked):
            await self._send(handle.cell, record.id, self.recorded(record), None)

    async def _send(
        self, cell: Networked, sandbox: str, policy: NetworkPolicy, inspection: Inspection | None
    ) -> None:
        try:
            await cell.change_network(policy, self._ceiling.reachable, inspection)
        except (Busy, SandboxLost) as exc:
            if not await cell.cut_network():
                raise
            if not policy.closed:
                raise SandboxLost(
                    f"the network of sandbox {sandbox} could not be changed and is closed for good",
                    hint="create a new sandbox",
                ) from exc


def _unchangeable(sandbox: str) -> UnsupportedByBackend:
    return UnsupportedByBackend(
        f"the network of sandbox {sandbox} cannot be changed: the platform of its backend decides",
        hint="create a new one with another network",
    )
