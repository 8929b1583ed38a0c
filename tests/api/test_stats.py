"""Stats, processes, pause and resume of a session."""

from __future__ import annotations

import asyncio

import pytest

from tests.patience import PATIENCE_S


@pytest.mark.promise("P71")
async def test_stats_have_current_and_older_field_names(real_daemon):
    box = f"/v1/sessions/{await real_daemon.session()}"
    await real_daemon.ask("POST", f"{box}/exec", {"cmd": "true"})
    found = (await real_daemon.ask("GET", f"{box}/stats")).json
    assert found["memory_limit"] == found["memory_limit_bytes"]
    assert found["cpu_usage_usec"] == found["cpu_usec"]
    assert (found["running"], found["shells"]) == (0, 1)
    assert "/workspace" in [one["path"] for one in found["disk"]]
    assert found["network"] == {
        "mode": "none",
        "rules": 0,
        "connections": 0,
        "rx_bytes": 0,
        "tx_bytes": 0,
    }
    quiet = (await real_daemon.ask("GET", f"{box}/stats?quiet=true")).json
    assert set(quiet) == set(found)


async def test_processes_are_listed_with_the_command_they_belong_to(real_daemon):
    box = f"/v1/sessions/{await real_daemon.session()}"
    begun = await real_daemon.ask(
        "POST", f"{box}/exec", {"cmd": ["sleep", "60"], "background": True}
    )
    found = (await real_daemon.ask("GET", f"{box}/processes")).json
    [asleep] = [one for one in found if one["name"] == "sleep"]
    assert asleep["cmdline"] == ["sleep", "60"]
    assert asleep["exec_id"] == begun.json["exec_id"]


async def test_a_paused_session_is_reported_and_continues_after_resume(real_daemon):
    box = f"/v1/sessions/{await real_daemon.session()}"
    paused = await real_daemon.ask("POST", f"{box}/pause")
    assert paused.json["status"] == "paused"
    refused = await real_daemon.ask("POST", f"{box}/exec", {"cmd": "echo a"})
    assert (refused.status, refused.json["details"]["reason"]) == (409, "paused")
    assert (await real_daemon.ask("GET", f"{box}/stats")).json["processes"] is None
    assert (await real_daemon.ask("POST", f"{box}/resume")).json["status"] == "running"
    again = await real_daemon.ask("POST", f"{box}/exec", {"cmd": "echo a"})
    assert again.json["output"] == "a\n"
    assert (await real_daemon.ask("POST", f"{box}/reclaim")).status == 200


@pytest.mark.promise("P92")
async def test_a_list_with_usage_shows_commands_and_wakes_no_session(journalled_daemon):
    busy, idle = [await journalled_daemon.session() for _ in range(2)]
    body = {"cmd": ["sh", "-c", "sleep 300 #" + "x" * 300], "background": True}
    begun = await journalled_daemon.ask("POST", f"/v1/sessions/{busy}/exec", body)
    plain = (await journalled_daemon.ask("GET", "/v1/sessions")).json
    assert {one["usage"] for one in plain} == {None}
    found = {one["id"]: one for one in await _with_usage(journalled_daemon)}
    usage = found[busy]["usage"]
    (command,) = usage["commands"]
    assert (usage["running"], command["exec_id"]) == (1, begun.json["exec_id"])
    assert command["command"].startswith("sh -c 'sleep 300 #xxx")
    assert len(command["command"]) == 200
    # Disk is known where a command runs; an idle session is not asked.
    assert usage["disk_bytes"] is not None
    assert found[idle]["usage"]["disk_bytes"] is None
    assert (found[idle]["usage"]["running"], found[idle]["usage"]["commands"]) == (0, [])
    assert found[idle]["expires_at"] == next(
        one["expires_at"] for one in plain if one["id"] == idle
    )
    await journalled_daemon.ask(
        "POST", f"/v1/sessions/{busy}/execs/{begun.json['exec_id']}/signal", {"signal": 9}
    )
    async with asyncio.timeout(PATIENCE_S):
        # Its end is noticed soon after, and not by an event.
        while any(  # noqa: ASYNC110
            one["usage"]["running"] for one in await _with_usage(journalled_daemon)
        ):
            await asyncio.sleep(0.05)


async def _with_usage(daemon):
    reply = await daemon.ask("GET", "/v1/sessions?usage=true")
    assert reply.status == 200, reply.json
    return reply.json


async def test_measuring_many_sessions_lets_others_run_meanwhile(real_daemon):
    engine = real_daemon.server.engine
    info = await engine.get(await real_daemon.session())
    turns, done = 0, asyncio.Event()

    async def others():
        nonlocal turns
        while not done.is_set():
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    found = await engine._usages.added([info] * 200)
    done.set()
    await other
    assert all(one.usage is not None for one in found)
    # At most a few sessions are measured in one turn of the loop.
    assert turns >= 200 / 8
