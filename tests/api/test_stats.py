"""Stats, processes, pause and resume of a session."""

from __future__ import annotations

import pytest


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
