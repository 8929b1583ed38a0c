"""The dashboard and the alerts that we ship, and what Prometheus says to our metrics."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess

import aiohttp
import pytest
import yaml

from sandkasten.model.sandbox.network_policy import NetworkCounts
from sandkasten_server.daemon.metrics import Metrics
from tests.daemon.process import ask, running
from tests.loopback_port import free_port
from tests.patience import PATIENCE_S
from tests.repo.tree import ROOT

MONITORING = ROOT / "deploy" / "monitoring"
_NAME = re.compile(r"\b(?:sandkasten|station)_\w+")


def _queries():
    board = json.loads((MONITORING / "grafana.json").read_text())
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
    panels = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return panels + [rule["expr"] for rule in rules]


def test_the_dashboard_and_the_alerts_name_metrics_that_exist():
    known = {family.name for family in Metrics().registry.collect()}
    for query in _queries():
        for name in _NAME.findall(query):
            assert re.sub("_(bucket|count|sum|total)$", "", name) in known, query


def test_a_small_daemon_exports_fewer_than_400_lines():
    metrics = Metrics("1")
    for runtime in ("python", "node", "bash"):
        metrics.emit("sandbox_run_finished", {"runtime": runtime, "ok": True, "duration_ms": 5})
    for source in ("cold", "pool"):
        metrics.emit("sandbox.created", {"source": source, "seconds": 0.02})
    for end in ("completed", "timed_out", "killed"):
        metrics.emit("exec.finished", {"status": end, "seconds": 0.1, "stdout_bytes": 3})
    # What a dashboard, a command line and a test program used of one daemon in an afternoon.
    for route in range(40):
        for method, status in (("GET", 200), ("POST", 201)):
            metrics.emit(
                "http.answered",
                {"method": method, "route": f"/v1/{route}", "status": status, "seconds": 0.01},
            )
    text, _ = metrics.render({("running", "local"): 2}, NetworkCounts())
    assert len(text.splitlines()) < 400
    assert b'sandkasten_http_request_seconds_count{method="GET",route="/v1/7"' in text
    assert b'sandkasten_http_duration_seconds_bucket{le="0.01",method="GET"} 40.0' in text


@pytest.mark.long("installs Prometheus; make test compares the names of the metrics")
async def test_prometheus_reads_the_metrics_and_runs_every_query(tmp_path):
    checked = await asyncio.to_thread(_promtool, "rules", str(MONITORING / "alerts.yml"))
    assert checked.returncode == 0, checked
    async with (
        running(tmp_path / "data", environ={"SANDKASTEN_BACKEND": "local"}) as daemon,
        aiohttp.ClientSession(daemon.url) as http,
    ):
        status, answer = await ask(http, "POST", "/v1/run", {"code": "print(1)"})
        assert status == 200, answer
        async with http.get("/metrics") as reply:
            text = await reply.read()
        linted = await asyncio.to_thread(_promtool, "metrics", given=text)
        # The name is part of the contract; all else is as Prometheus recommends.
        assert (linted.stdout + linted.stderr).decode().splitlines() == [
            "station_sandbox_run_duration_ms metric names should not contain abbreviated units"
        ]
        await _asked(tmp_path, daemon.url)


def _promtool(*words, given=None):
    return subprocess.run(
        ["promtool", "check", *words], input=given, capture_output=True, check=False
    )


async def _asked(directory, url):
    port = free_port()
    config = {
        "rule_files": [str(MONITORING / "alerts.yml")],
        "scrape_configs": [
            {
                "job_name": "sandkasten",
                "scrape_interval": "1s",
                "static_configs": [{"targets": [url.removeprefix("http://")]}],
            }
        ],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config))
    server = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/tsdb",
        f"--web.listen-address=127.0.0.1:{port}",
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            await _scraped(http)
            for query in _queries():
                found = query.replace('instance=~"$instance"', 'instance=~".+"')
                found = found.replace("$__rate_interval", "5s")
                async with http.get("/api/v1/query", params={"query": found}) as reply:
                    answer = await reply.json()
                assert answer["status"] == "success", (found, answer)
            sessions = 'count(sandkasten_build_info{instance=~".+"})'
            async with http.get("/api/v1/query", params={"query": sessions}) as reply:
                assert (await reply.json())["data"]["result"][0]["value"][1] == "1"
    finally:
        server.terminate()
        await server.wait()


async def _scraped(http):
    """Wait until Prometheus has read our metrics once."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                async with http.get(
                    "/api/v1/query", params={"query": "sandkasten_build_info"}
                ) as reply:
                    if reply.status == 200 and (await reply.json())["data"]["result"]:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
