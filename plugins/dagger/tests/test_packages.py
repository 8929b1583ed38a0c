"""Packages of a one-shot: installed on this machine, uploaded to an engine without a network."""

from __future__ import annotations

import pytest

from plugins.dagger.tests import site
from plugins.dagger.tests.node_image import node_tar
from sandkasten.errors import ProvisioningFailed
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from tests.packages.wheels import serving, wheel

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("P123"),
    pytest.mark.long(reason="the engine is compiled for a quarter of an hour"),
    pytest.mark.timeout(600),
]
LOOK = """
import os, subprocess, sys, zeta
print(zeta.VERSION, sys.argv[1], os.environ["WHO"], open("/work/in.txt").read())
print(subprocess.check_output(["zeta-tool"], text=True).strip())
open("out.txt", "w").write(zeta.VERSION)
try:
    open(os.path.join(os.path.dirname(zeta.__file__), "x"), "w")
except OSError as exc:
    print(exc.strerror)
"""


@pytest.fixture
async def engine(dagger_none, tmp_path):
    scripts = {"zeta-tool": "zeta_tool:main"}
    tool = {"zeta_tool.py": "def main(): print('the tool runs')\n"}
    wheel(tmp_path / "w", "zeta", "1.5", needs=["eta"], scripts=scripts, files=tool)
    wheel(tmp_path / "w", "eta")
    more = {
        "dagger_engines_none": dagger_none.address,
        "packages_find_links": str(tmp_path / "w"),
    }
    async with site.opened(tmp_path / "data", **more) as instance:
        yield instance


def run(code: str, *packages: str) -> RunRequest:
    return RunRequest(
        code,
        args=("one",),
        files={"in.txt": "text"},
        artifacts=("*.txt",),
        options=SandboxOptions(pip_packages=packages, env={"WHO": "me"}),
    )


async def test_a_run_without_a_network_has_its_packages_and_everything_else(engine):
    for _ in range(2):
        result = await engine.run(run(LOOK, "zeta==1.5"))
        assert result.ok, result.stderr
        assert result.stdout.decode().splitlines()[:2] == ["1.5 one me text", "the tool runs"]
        # They belong to root, and a run is not root.
        assert result.stdout.splitlines()[2] in (b"Permission denied", b"Read-only file system")
        assert {artifact.path: artifact.data for artifact in result.artifacts} == {
            "in.txt": b"text",
            "out.txt": b"1.5",
        }
    plain = await engine.run(run("import zeta"))
    assert b"No module named 'zeta'" in plain.stderr


async def test_a_package_that_does_not_exist_is_an_error_and_nothing_runs(engine):
    with pytest.raises(ProvisioningFailed, match="theta"):
        await engine.run(run("print(1)", "theta"))
    assert await engine.list(all=True) == []


async def test_packages_of_npm_are_found_too(dagger_none, tmp_path):
    with serving() as registry:
        registry.package("left", files={"index.js": "module.exports = 'left'"})
        more = {
            "dagger_engines_none": dagger_none.address,
            "packages_npm_registry": registry.url,
        }
        async with site.opened(tmp_path / "data", archive=node_tar(), **more) as engine:
            code = "console.log(require('left'))"
            options = SandboxOptions(npm_packages=("left",))
            result = await engine.run(RunRequest(code, "node", options=options))
            assert result.stdout == b"left\n", result.stderr
