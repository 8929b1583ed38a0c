"""The examples of the source document about Dagger, on a real engine.

Small images and packages have the names of those in the document. Its Go code belongs to another
program: what that code does is tested instead
(`test_what_the_go_code_of_the_document_does_is_done`).
"""

from __future__ import annotations

import json

import aiohttp
import pytest

from plugins.dagger.tests import site
from plugins.dagger.tests.node_image import node_tar
from sandkasten.errors import PolicyDenied
from sandkasten.model.images.image_info import ImportRequest
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten_agents.definitions.prompt_file import parse_agent
from tests import imagekit
from tests.agents import desk
from tests.agents.agency import house
from tests.daemon.process import ask, running
from tests.packages.wheels import wheel
from tests.seeds import go_source
from tests.seeds.documents import all_blocks, block
from tests.seeds.test_agent_blocks import EMPTY, FENCE, LOG, prompts, scripted
from tests.seeds.test_tool_blocks import same_shape
from tests.telemetry.otlp_receiver import http_receiver

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("P114", "P123"),
    pytest.mark.long(reason="the engine is compiled for a quarter of an hour"),
    pytest.mark.timeout(600),
]
AGENTS = {name: text for name, text in prompts().items() if name.startswith("000-")}
# What each image of the document is here.
IMAGES = {
    "python:3.11-slim": imagekit.debian_tar,
    "node:20-slim": node_tar,
    "ubuntu:22.04": imagekit.debian_tar,
}
RUN_HERE = {
    *("000-3", "000-7", "000-8", "000-9", "000-10"),
    *(name.rpartition("-")[0] for name in AGENTS),
}
NOT_RUN = {
    "000-1": "a diagram",
    "000-2": "the files of another project",
    "000-6": "the fields of the frontmatter, which the agents 000-5 and 000-12 have",
}


def test_every_block_of_the_document_is_run_here_or_not_code():
    assert {entry.id for entry in all_blocks() if entry.document == "000"} == RUN_HERE | {*NOT_RUN}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def variables(dagger_none, place) -> dict[str, str]:
    """Return the settings of the document (block 9), with one of the modes that it offers."""
    documented = dict(line.split("=", 1) for line in block("000-9").text.splitlines())
    base = site.environ(place / "data", packages_find_links=str(place / "wheels"))
    # Each runtime has the image of the document.
    del base["SANDKASTEN_DEFAULT_IMAGE"]
    chosen = {"STATION_SANDBOX_ENGINE_MODE": "sidecar", "DAGGER_HOST": dagger_none.address}
    return {**base, **documented, **chosen}


@pytest.fixture(scope="module")
async def service(dagger_none, tmp_path_factory, anyio_backend):
    """A service with the agents of the document, and the images that it names."""
    place = tmp_path_factory.mktemp("examples")
    for name in ("pandas", "pyyaml"):
        wheel(place / "wheels", name, "2.0")
    with site.own_home(place / "data"):
        async with house(
            place,
            files={f"agents/{name}.prompt": text for name, text in AGENTS.items()},
            script=scripted,
            backend="dagger",
            SANDKASTEN_MODELS_DEFAULT="scripted",
            **variables(dagger_none, place),  # type: ignore[arg-type]  # names in capitals
        ) as daemon:
            for name, archive in IMAGES.items():
                await daemon.engine.images.import_archive(str(archive()), ImportRequest(name))
            yield daemon


@pytest.fixture
def tools(service):
    """The tools of an agent."""
    return desk.fresh(service.engine, service.files)


# ---- agents


@pytest.mark.parametrize("name", AGENTS)
async def test_an_agent_of_the_document_runs(service, name):
    text = AGENTS[name]
    agent = parse_agent(text, name)
    assert agent.warnings == ((EMPTY,) if text.endswith(FENCE) else ())
    row = await service.agent(agent.name, "Compute it", variables={"log_data": LOG})
    assert (row.status, row.error) == ("completed", None)
    if "log_data" in text:
        assert row.output == {
            "total_lines": 4,
            "error_count": 3,
            "top_errors": [{"message": "ERROR b", "count": 2}, {"message": "ERROR c", "count": 1}],
        }
    else:
        # The `pyyaml` of these tests has no module `yaml`.
        packages = " pandas" if "pip_packages" in text else ""
        assert row.output == f"computed 42 True{packages}\n"
    assert await service.sandboxes() == []


async def test_the_packages_image_and_time_of_an_agent_hold(tools):
    sandbox = parse_agent(block("000-5").text, "correlator").sandbox
    assert sandbox is not None
    answer = await tools.asking(sandbox).call(
        "run", code="import pandas, pyyaml; print(pandas.VERSION, pyyaml.VERSION)"
    )
    assert answer["stdout"] == "2.0 2.0\n", answer
    assert answer["limits"]["timeout_seconds"] == 300
    assert answer["limits"]["max_stdout_bytes"] == 200_000
    assert answer["image"] == "python:3.11-slim"


# ---- the tool


async def test_every_argument_of_the_documents_schema_is_used_on_every_runtime(tools):
    properties = go_source.map_literal(block("000-3").text, "schema")["properties"]
    codes = {
        "python": "import os, sys; print(sys.argv[1], os.environ['WHO'], open('/work/a/b').read())",
        "node": "console.log(process.argv[2], process.env.WHO, "
        "require('fs').readFileSync('/work/a/b', 'utf8'))",
        "bash": 'echo "$1" "$WHO" "$(cat /work/a/b)"; [[ x == x ]]',
    }
    assert [*codes] == properties["runtime"]["enum"]
    for runtime, code in codes.items():
        arguments = {
            "runtime": runtime,
            "code": code,
            "args": ["one two"],
            "env": {"WHO": "me"},
            "files": {"a/b": "text"},
            "timeout_seconds": 60,
        }
        assert set(arguments) == set(properties)
        answer = await tools.call("run", **arguments)
        assert answer["stdout"] == "one two me text\n", answer


async def test_the_answer_has_the_shape_of_the_documents_example(tools):
    code = (
        "import os; os.makedirs('output'); print('top offenders: ...')\n"
        "open('output/result.json', 'w').write('{\"key\": \"...\"}')"
    )
    answer = await tools.call("run", code=code, artifacts=["output/*.json"], timeout_seconds=300)
    shown = json.loads(block("000-7").text)
    same_shape(shown, answer)
    assert answer["artifacts"][0]["content_base64"] == shown["artifacts"][0]["content_base64"]
    assert answer["limits"].items() >= shown["limits"].items()
    assert answer["stdout"] == shown["stdout"] + "\n"


async def test_what_the_go_code_of_the_document_does_is_done(service):
    code = (
        "import os, sys\n"
        "assert os.path.samefile('.', '/work')\n"
        "assert os.path.samefile(sys.argv[0], '/work/main.py')\n"
        "print(open('/work/data/rows.csv').read(), sys.argv[1:])\n"
    )
    result = await service.engine.run(
        RunRequest(code, files={"data/rows.csv": "1;2"}, args=("a", "b"))
    )
    assert (result.stdout, result.stderr) == (b"1;2 ['a', 'b']\n", b"")


async def test_a_file_of_50_mb_is_summarized_and_its_result_is_an_artifact(service):
    rows = json.dumps([{"host": f"h{i % 7}", "ms": i, "path": "/" * 40} for i in range(600_000)])
    assert 40e6 < len(rows) < 60e6
    code = (
        "import json, os, sys\n"
        "rows = json.load(open('/work/data.json'))\n"
        "os.makedirs('output')\n"
        "json.dump({'rows': len(rows), 'name': sys.argv[1]}, open('output/result.json', 'w'))\n"
        "print('top offenders:', os.environ['REGION'])\n"
    )
    result = await service.engine.run(
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
    assert json.loads(artifact.data or b"") == {"rows": 600_000, "name": "job"}


async def test_an_image_that_is_not_in_the_documents_list_is_refused(service):
    with pytest.raises(PolicyDenied, match="alpine:3"):
        await service.engine.run(RunRequest("1", options=SandboxOptions(image="alpine:3")))


# ---- a daemon


async def test_a_daemon_reports_the_spans_of_the_document(dagger_none, tmp_path):
    lines = block("000-10").text.splitlines()
    drawn = [line.split()[-1] for line in lines if "── sandbox." in line]
    assert len(drawn) == 5
    async with site.opened(tmp_path / "data", dagger_engines_none=dagger_none.address):
        pass  # The store of this data directory has the image now.
    with http_receiver() as receiver:
        environ = {
            **variables(dagger_none, tmp_path),
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }
        async with (
            running(tmp_path / "data", environ=environ) as daemon,
            aiohttp.ClientSession(daemon.url) as http,
        ):
            body = {"code": "open('a.txt', 'w').write('x')", "artifacts": ["*.txt"]}
            status, answer = await ask(http, "POST", "/v1/run", body)
            assert (status, answer["backend"]) == (200, "dagger"), answer
            await receiver.until(lambda: receiver.named("sandbox_run"))
            (run,) = receiver.named("sandbox_run")
            assert receiver.below(run) == sorted(drawn)
            assert run.attributes["sandbox.image"] == "python:3.11-slim"
            assert run.attributes["sandbox.exit_code"] == 0
