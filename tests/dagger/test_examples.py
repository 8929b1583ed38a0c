"""The examples of the source document that is built on Dagger, as written, on a real engine."""

from __future__ import annotations

import json
import re

import pytest

from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from tests.dagger import site
from tests.seeds.documents import documents

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("P114"),
    pytest.mark.long(reason="the engine is compiled for a quarter of an hour"),
    pytest.mark.timeout(600),
]


def blocks() -> list[str]:
    (document,) = [one for one in documents() if one.id == "000"]
    return [one.text for one in document.blocks]


def station_variables() -> dict[str, str]:
    """Return the settings of the document, with one of the modes that it offers."""
    (block,) = [one for one in blocks() if one.startswith("STATION_SANDBOX_ENABLED=")]
    told = dict(line.split("=", 1) for line in block.splitlines())
    return {**told, "STATION_SANDBOX_ENGINE_MODE": "sidecar"}


def log_analyzer() -> str:
    """Return the code of the example agent."""
    (code,) = [found for one in blocks() for found in re.findall(r"```python\n(.*?)```", one, re.S)]
    return code


@pytest.fixture
async def engine(engine_none, tmp_path, monkeypatch):
    monkeypatch.setattr(
        site, "VARIABLES", {**station_variables(), "DAGGER_HOST": engine_none.address}
    )
    async with site.opened(tmp_path / "data") as one:
        yield one


async def test_the_example_agent_computes_what_it_says(engine):
    log = "INFO start\nERROR disk\nERROR disk\nERROR net"
    code = log_analyzer().replace("{{ log_data }}", log)
    result = await engine.run(RunRequest(code))
    assert result.ok, result.stderr
    found = json.loads(result.stdout)
    assert (found["total_lines"], found["error_count"]) == (4, 3)
    assert found["top_errors"][0] == {"message": "ERROR disk", "count": 2}
    assert result.limits["timeout_seconds"] == 120
    assert result.limits["max_stdout_bytes"] == 200_000
    assert (result.image, result.backend) == ("python:3.11-slim", "dagger")


async def test_a_large_file_is_summarized_and_its_result_is_an_artifact(engine):
    rows = json.dumps([{"host": f"h{i % 7}", "ms": i} for i in range(200_000)])
    code = (
        "import json, os, sys\n"
        "rows = json.load(open('/work/data.json'))\n"
        "os.makedirs('output')\n"
        "json.dump({'rows': len(rows), 'name': sys.argv[1]}, open('output/result.json', 'w'))\n"
        "print('top offenders:', os.environ['REGION'])\n"
    )
    result = await engine.run(
        RunRequest(
            code,
            args=("job",),
            files={"data.json": rows},
            artifacts=("output/*.json",),
            timeout_seconds=300,
            options=SandboxOptions(env={"REGION": "eu"}),
        )
    )
    assert (result.ok, result.stdout) == (True, b"top offenders: eu\n"), result.stderr
    (artifact,) = result.artifacts
    assert artifact.path == "output/result.json"
    assert json.loads(artifact.data or b"") == {"rows": 200_000, "name": "job"}
