"""Quotas of a tenant's network: sums of limits, and bytes of a day that survive the daemon."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import QuotaExceeded
from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.sandbox.network_limits import NetworkLimits
from sandkasten.model.sandbox.network_policy import parse_network
from sandkasten.model.sandbox.network_shares import shared_limits
from sandkasten_runtime.assembly.backend_registry import prepare_data_dir
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_server.api.request.authentication import Doorkeeper
from sandkasten_server.daemon.metrics import Metrics
from sandkasten_server.daemon.persistent_stores import open_books
from tests.api.daemon_in_process import serving
from tests.api.daemon_with_database import AS_OPERATOR, OPERATOR, new_key
from tests.daemon.process import cleared
from tests.network.conftest import HOSTS
from tests.network.test_limits import MEGABYTE, large

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.api.daemon_in_process import Daemon, Reply

__all__ = ["large"]
DAY_S = 86_400.0


def share(quota: TenantQuota, *others: NetworkLimits, **asked: int) -> dict[str, Any]:
    policy = parse_network({"allow": ["a.test"], "limits": asked})
    return dict(shared_limits(policy, "acme", quota, others).requested_limits)


def test_a_request_without_a_limit_gets_its_share_of_the_quota():
    quota = TenantQuota(max_network_connections=100)
    assert share(quota) == {"connections": 100}
    assert share(TenantQuota(max_network_connections=5000)) == {"connections": 256}
    assert share(quota, NetworkLimits(connections=70)) == {"connections": 30}
    of_four = TenantQuota(max_sessions=4, max_network_connections=100)
    assert share(of_four) == {"connections": 25}
    assert share(of_four, NetworkLimits(connections=90)) == {"connections": 10}
    rare = TenantQuota(max_sessions=400, max_network_bandwidth_bps=2)
    assert share(rare, NetworkLimits(bandwidth_bps=1)) == {"bandwidth_bps": 1}
    assert share(TenantQuota(max_sessions=1), bytes_in=7) == {"bytes_in": 7}


def test_the_sum_of_limits_never_exceeds_the_quota():
    quota = TenantQuota(max_network_connections=100, max_network_bandwidth_bps=1000)
    other = NetworkLimits(connections=70, bandwidth_bps=1000)
    with pytest.raises(QuotaExceeded) as refused:
        share(quota, other, connections=31)
    assert refused.value.details == {"quota": "network_connections", "limit": 100, "used": 70}
    with pytest.raises(QuotaExceeded) as refused:
        share(quota, other, connections=30)
    assert refused.value.details == {"quota": "network_bandwidth_bps", "limit": 1000, "used": 1000}
    # One without a limit can use everything.
    with pytest.raises(QuotaExceeded, match="1000 of 1000") as refused:
        share(quota, NetworkLimits(connections=1))
    assert "has no limit" in (refused.value.hint or "")


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("SANDKASTEN_NETWORK_REACHABLE", "127.0.0.1/32")
    monkeypatch.setenv("SANDKASTEN_NETWORK_HOSTS", HOSTS)
    monkeypatch.setenv("SANDKASTEN_NETWORK_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("SANDKASTEN_POLICY_NETWORK", "full")
    yield load({"data_dir": str(tmp_path / "data"), "backend": "local"}, dict(os.environ))
    asyncio.run(cleared(tmp_path / "data"))


@asynccontextmanager
async def daemon_of(settings: Any) -> AsyncIterator[Daemon]:
    clock = SystemClock()
    prepare_data_dir(settings.data_dir)
    async with open_books(settings, clock) as books:
        metrics = Metrics()
        engine = await open_engine(settings, journal=books.journal, events=metrics)
        try:
            await engine.recover()
            doorkeeper = Doorkeeper(clock=clock, keys=books.keys, api_key=OPERATOR)
            parts: dict[str, Any] = {
                "journal": books.journal,
                "keys": books.keys,
                "doorkeeper": doorkeeper,
                "metrics": metrics,
            }
            async with serving(engine, **parts) as one:
                yield one
        finally:
            await engine.aclose()


async def create(daemon: Daemon, key: dict[str, str], port: int, **limits: int) -> Reply:
    network = {"allow": [f"good.test:{port}"], "limits": limits}
    return await daemon.ask("POST", "/v1/sessions", {"network": network}, headers=key)


async def change(daemon: Daemon, key: dict[str, str], box: str, port: int, **limits: int) -> Reply:
    network = {"allow": [f"good.test:{port}"], "limits": limits}
    return await daemon.ask("PATCH", f"/v1/sessions/{box}", {"network": network}, headers=key)


async def read(daemon: Daemon, key: dict[str, str], box: str, port: int) -> dict[str, Any]:
    """Read two megabytes; return how many bytes were counted for it, and what was refused."""
    before = await counted(daemon, key, box)
    command = f"exec 3<>/dev/tcp/good.test/{port}; head -c {2 * MEGABYTE} <&3 | wc -c"
    body = {"command": ["bash", "-c", command]}
    done = await daemon.ask("POST", f"/v1/sessions/{box}/exec", body, headers=key)
    assert done.status == 200, done.raw
    refused = (done.json.get("network") or {}).get("refused", [])
    came = await counted(daemon, key, box) - before
    return {"bytes": came, "rules": [one["rule"] for one in refused]}


async def counted(daemon: Daemon, key: dict[str, str], box: str) -> int:
    told = await daemon.ask("GET", f"/v1/sessions/{box}/network", headers=key)
    return int(told.json["bytes_in"])


@pytest.mark.anyio
@pytest.mark.root
@pytest.mark.promise("P75")
async def test_the_networks_of_a_tenant_share_its_quota(settings, web):
    async with daemon_of(settings) as daemon:
        quota = {"max_sessions": 5, "max_network_connections": 10}
        key = await new_key(daemon, tenant="acme", quota=quota)
        first = await create(daemon, key, web)
        assert first.json["network"]["limits"] == {"connections": 2}
        second = await create(daemon, key, web, connections=7)
        assert second.status == 201, second.raw
        refused = await create(daemon, key, web, connections=2)
        assert (refused.status, refused.json["code"]) == (429, "QUOTA_EXCEEDED")
        assert refused.json["details"] == {"quota": "network_connections", "limit": 10, "used": 9}
        # Sandboxes without a network need nothing, and other tenants have their own.
        assert (await daemon.ask("POST", "/v1/sessions", {}, headers=key)).status == 201
        others = await new_key(daemon, tenant="others", quota=quota)
        assert (await create(daemon, others, web, connections=10)).status == 201
        # A change counts like a new one, and a refused one changes nothing.
        box = first.json["id"]
        assert (await change(daemon, key, box, web, connections=4)).status == 429
        told = await daemon.ask("GET", f"/v1/sessions/{box}", headers=key)
        assert told.json["network"]["limits"] == {"connections": 2}
        assert (await change(daemon, key, box, web, connections=3)).status == 200
        await daemon.ask("DELETE", f"/v1/sessions/{second.json['id']}", headers=key)
        assert (await create(daemon, key, web, connections=7)).status == 201
        told = await daemon.ask("GET", "/v1/usage", headers=key)
        assert told.json["quota"]["max_network_connections"] == 10
        used = told.json["used"]
        assert (used["sessions"], used["network_connections"]) == (3, 10)
        assert (used["network_bandwidth_bps"], used["network_bytes_today"]) == (None, 0)


@pytest.mark.anyio
@pytest.mark.root
@pytest.mark.promise("P75")
async def test_bytes_of_a_tenant_end_at_its_quota_until_the_next_day(settings, large, monkeypatch):
    quota = {"max_network_bytes_per_day": MEGABYTE}
    async with daemon_of(settings) as daemon:
        key = await new_key(daemon, tenant="acme", quota=quota)
        free = await new_key(daemon, tenant="free")
        one, two = [(await create(daemon, key, large)).json["id"] for _ in range(2)]
        # Its own egress process stops at the quota, without the daemon.
        assert await read(daemon, key, one, large) == {
            "bytes": MEGABYTE,
            "rules": ["limit:tenant_bytes"],
        }
        # The others are told, once.
        await daemon.server.engine._watch.round()
        await daemon.server.engine._watch.round()
        seen = (await daemon.ask("GET", "/metrics", headers=AS_OPERATOR)).raw.decode()
        assert 'sandkasten_events_total{event="network.quota_reached"} 2.0' in seen
        told = await read(daemon, key, two, large)
        assert told == {"bytes": 0, "rules": ["limit:tenant_bytes"]}
        refused = await create(daemon, key, large)
        assert (refused.status, refused.json["code"]) == (429, "QUOTA_EXCEEDED")
        assert refused.json["details"]["quota"] == "network_bytes"
        assert refused.json["details"]["used"] >= MEGABYTE
        assert (await change(daemon, key, two, large)).status == 429
        assert (await daemon.ask("POST", "/v1/sessions", {}, headers=key)).status == 201
        # Another tenant has its own bytes; nothing has looked at them when its sandbox ends.
        lone = (await create(daemon, free, large)).json["id"]
        assert (await read(daemon, free, lone, large))["bytes"] == 2 * MEGABYTE
    _kill(settings.data_dir, lone)
    async with daemon_of(settings) as daemon:
        journal, day = daemon.server.stores.journal, int(SystemClock().now() // DAY_S)
        assert journal is not None
        assert await journal.traffic("free", day) >= 2 * MEGABYTE
        counted = await journal.traffic("acme", day)
        assert counted >= MEGABYTE
        await daemon.server.engine._watch.round()
        assert (await read(daemon, key, two, large))["rules"] == ["limit:tenant_bytes"]
        assert (await create(daemon, key, large)).status == 429
        assert await journal.traffic("acme", day) == counted
        now = SystemClock.now
        monkeypatch.setattr(SystemClock, "now", lambda self: now(self) + DAY_S)
        await daemon.server.engine._watch.round()
        assert (await read(daemon, key, two, large))["bytes"] == MEGABYTE
        # The operator's change of a network is under no quota.
        acting = {**AS_OPERATOR, "X-Sandkasten-Tenant": "acme"}
        assert (await change(daemon, acting, one, large)).status == 200
        assert (await read(daemon, key, one, large))["bytes"] == 2 * MEGABYTE


def _kill(data_dir: Path, box: str) -> None:
    (file,) = data_dir.glob(f"**/{box}/pid")
    os.kill(int(file.read_text().split()[0]), signal.SIGKILL)


@pytest.mark.anyio
@pytest.mark.root
@pytest.mark.promise("P75")
async def test_no_bytes_escape_the_quota_by_a_one_shot_or_a_closed_network(settings, large):
    async with daemon_of(settings) as daemon:
        quota = {"max_network_bytes_per_day": MEGABYTE}
        key = await new_key(daemon, tenant="acme", quota=quota)

        async def run(code: str) -> dict[str, Any]:
            network = {"allow": [f"good.test:{large}"]}
            body = {"runtime": "bash", "code": code, "network": network}
            done = await daemon.ask("POST", "/v1/run", body, headers=key)
            assert done.status == 200, done.raw
            return dict(done.json)

        # The second one makes the kind hot, so a warm sandbox would wait for the last one.
        for _ in range(3):
            await run("true")
        done = await run(f"exec 3<>/dev/tcp/good.test/{large}; head -c {2 * MEGABYTE} <&3 | wc -c")
        assert [one["rule"] for one in done["network"]["refused"]] == ["limit:tenant_bytes"]
        # Nothing has looked at this one when its network is closed.
        free = await new_key(daemon, tenant="free")
        lone = (await create(daemon, free, large)).json["id"]
        await read(daemon, free, lone, large)
        closed = await daemon.ask(
            "PATCH", f"/v1/sessions/{lone}", {"network": "none"}, headers=free
        )
        assert closed.status == 200, closed.raw
        used = (await daemon.ask("GET", "/v1/usage", headers=free)).json["used"]
        assert used["network_bytes_today"] >= 2 * MEGABYTE
