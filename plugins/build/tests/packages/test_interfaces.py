"""The same package request through the SDK, HTTP and the command line."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

import sandkasten
from sandkasten.errors import InvalidRequest, ProvisioningFailed
from sandkasten_server.cli.main import main
from tests.api.daemon_in_process import serving
from tests.packages.wheels import wheel

if TYPE_CHECKING:
    from pathlib import Path

CODE = "import delta; print(delta.VERSION)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("wheels")
    wheel(path, "delta", "4.0")
    return path


@pytest.fixture
def embedded(monkeypatch, folder, data_dir) -> Path:
    monkeypatch.setenv("SANDKASTEN_PACKAGES_FIND_LINKS", str(folder))
    return data_dir


@pytest.mark.long(reason="`make test` uses HTTP and the command line")
def test_the_sdk_runs_code_and_creates_sandboxes_with_packages(embedded):
    result = sandkasten.run(CODE, pip_packages=["delta"], data_dir=embedded)
    assert (result.ok, result.stdout) == (True, "4.0\n")
    with sandkasten.Sandbox(pip_packages=["delta"], data_dir=embedded) as box:
        assert box.exec(["python3", "-c", CODE]).stdout == "4.0\n"
        (mounted,) = box.info().mounts
        assert mounted.target == "/opt/sandkasten/python"
    with pytest.raises(ProvisioningFailed) as failed:
        sandkasten.run(CODE, pip_packages=["delta==9"], data_dir=embedded)
    assert failed.value.details["package"] == "delta==9"
    with pytest.raises(InvalidRequest):
        sandkasten.run(CODE, pip_packages="delta", data_dir=embedded)


def test_the_command_line_accepts_packages(embedded, capsys):
    # No other test asks for it in these words, so it is not installed yet.
    spec = "delta==4.0"
    where = ["--data-dir", str(embedded)]
    with pytest.raises(SystemExit) as ended:
        main([*where, "run", "--json", "--pip", spec, "-c", CODE])
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["stdout"] == "4.0\n"
    progress, done = err.splitlines()
    assert progress == f"installing {spec}"
    assert re.fullmatch(rf"installed {spec} \(\d+ s\)", done)
    with pytest.raises(SystemExit):
        main([*where, "run", "--pip", spec, "-c", CODE])
    assert capsys.readouterr() == ("4.0\n", "")


@pytest.mark.anyio
async def test_http_accepts_packages_in_both_bodies_and_reports_failures(opened, folder):
    async with opened(find_links=folder) as engine, serving(engine) as daemon:
        body = {"code": CODE, "pip_packages": ["delta"]}
        assert (await daemon.ask("POST", "/v1/run", body)).json["stdout"] == "4.0\n"
        response = await daemon.ask("POST", "/v1/sessions", {"pip_packages": ["delta"]})
        assert (response.status, [mount["target"] for mount in response.json["mounts"]]) == (
            201,
            ["/opt/sandkasten/python"],
        )
        for wish, status, code in (
            ({"pip_packages": ["delta==9"]}, 422, "PROVISIONING_FAILED"),
            ({"pip_packages": ["--help"]}, 400, "INVALID_REQUEST"),
            ({"npm_packages": ["../x"]}, 400, "INVALID_REQUEST"),
        ):
            answer = await daemon.ask("POST", "/v1/sessions", wish)
            assert (answer.status, answer.json["code"]) == (status, code)
