"""npm packages from a registry made here, unpacked by node in real sandboxes."""

from __future__ import annotations

import asyncio
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import ProvisioningFailed
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten_build.packages.npm_packages import configured_registry
from tests.packages.wheels import npm_tarball, serving
from tests.patience import PATIENCE_S
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandkasten_runtime.engine.engine import Engine
    from tests.packages.wheels import Server

pytestmark = pytest.mark.anyio


@pytest.fixture
def registry() -> Iterator[Server]:
    with serving() as server:
        yield server


async def said(engine: Engine, code: str, *packages: str, runtime: str = "node") -> str:
    result = await engine.run(
        RunRequest(code, runtime, options=SandboxOptions(npm_packages=packages))
    )
    return (result.stdout + result.stderr).decode().strip()


@pytest.mark.promise("P54")
async def test_packages_are_found_by_require_and_import_and_their_programs_by_name(
    opened, registry
):
    long = "deep/" * 30 + "file.js"
    registry.package(
        "left",
        dependencies={"@scope/pad": "^1.0.0", "other": "1"},
        files={
            "index.js": "module.exports = () => 'left ' + require('@scope/pad')",
            "cli.js": "#!/usr/bin/env node\nconsole.log(require('left')(), process.argv[2])\n",
            long: "module.exports = 'deep'",
        },
        bin={"left-say": "./cli.js"},
    )
    registry.package("@scope/pad", "1.2.0", files={"index.js": "module.exports = 'pad 1'"})
    registry.package("@scope/pad", "2.0.0", files={"index.js": "module.exports = 'pad 2'"})
    registry.package(
        "other",
        dependencies={"@scope/pad": "2"},
        files={"index.js": "module.exports = require('@scope/pad')"},
    )
    code = f"""
cat > a.mjs <<'END'
import left from 'left'
import other from 'other'
console.log(left(), other)
END
mkdir -p sub && cp a.mjs sub/ && node sub/a.mjs
node -e 'console.log(require("left/{long}"), require("other"))'
left-say hello
ls /workspace; touch /node_modules/x 2>&1 | grep -o 'Read-only.*'
"""
    async with opened(npm_registry=registry.url) as engine:
        assert (await said(engine, code, "left", runtime="bash")).splitlines() == [
            "left pad 1 pad 2",
            "deep pad 2",
            "left pad 1 hello",
            "a.mjs",
            "main.sh",
            "sub",
            "Read-only file system",
        ]
        count = len(registry.asked)
        assert await said(engine, "console.log(require('left')())", "left") == "left pad 1"
        assert len(registry.asked) == count, "nobody was asked again"


@pytest.mark.promise("P54")
async def test_install_scripts_run_inside_without_a_network(opened, registry, tmp_path):
    mark, port = tmp_path / "host", registry.url.rpartition(":")[2]
    mark.mkdir()
    registry.package(
        "native",
        dependencies={"gyp": "1"},
        optionalDependencies={"extra": "1"},
        files={
            "make.js": f"""
const fs = require("fs"), net = require("net"), made = [require("gyp"), process.env.HOME];
made.push(process.env.npm_lifecycle_event, fs.existsSync({str(mark)!r}));
try {{ fs.writeFileSync({str(mark / "ran")!r}, ""); }} catch (error) {{}}
const socket = net.connect({port}, "127.0.0.1", () => made.push("connected"));
socket.on("error", (error) => made.push(error.code));
socket.on("close", () => fs.writeFileSync("made.json", JSON.stringify(made)));
"""
        },
        main="made.json",
        scripts={"install": "gyp-say > said && node make.js", "test": "exit 1"},
    )
    registry.package("gyp", files={"index.js": "module.exports = 'gyp'", "cli.sh": "echo hello"},
                     bin={"gyp-say": "cli.sh"})  # fmt: skip
    registry.package("extra", scripts={"postinstall": "echo unused; exit 3"})
    code = """console.log(require("native"));
try { require("extra") } catch (error) { console.log(error.code) }"""
    async with opened(npm_registry=registry.url) as engine:
        output = " ".join((await said(engine, code, "native", "gyp")).split())
        expected = "[ 'gyp', '/workspace/tmp', 'install', false, 'ECONNREFUSED' ]"
        assert output == f"{expected} MODULE_NOT_FOUND"
    async with opened(npm_registry=registry.url, build=False) as engine:
        look = "console.log(require('fs').existsSync('/node_modules/native/said'))"
        assert await said(engine, look, "native") == "false"
    assert list(mark.iterdir()) == []


async def test_a_failed_install_script_is_named_with_its_output(opened, registry):
    registry.package("broken", scripts={"postinstall": "echo no compiler >&2; exit 3"})
    async with opened(npm_registry=registry.url) as engine:
        with pytest.raises(ProvisioningFailed) as failed:
            await said(engine, "1", "broken")
    assert failed.value.message.splitlines() == [
        "an install script of the npm packages failed (broken), status 1:",
        "no compiler",
        "broken: postinstall (echo no compiler >&2; exit 3) ended with status 3",
    ]


@pytest.mark.promise("P54")
@pytest.mark.parametrize(
    ("dist", "why"),
    few(
        [
            ({"integrity": "sha512-" + "A" * 86 + "=="}, "its file does not match the digest"),
            ({"tarball": "file:///etc/passwd"}, "its file has no valid address"),
            ({"integrity": "", "shasum": ""}, "has no valid digest for its file"),
            ({"integrity": "sha512-!!"}, "has no valid digest for its file"),
            ({"tarball": "http://192.0.2.1/x.tgz"}, "the registry answered 404 for its file"),
            ({"tarball": "http://[x/y"}, "its file has no valid address"),
        ],
        2,
    ),
)
async def test_a_package_file_with_a_wrong_digest_or_address_is_refused(
    opened, registry, dist, why
):
    registry.package("evil", dist=dist)
    async with opened(npm_registry=registry.url) as engine:
        with pytest.raises(ProvisioningFailed) as failed:
            await said(engine, "1", "evil")
    assert failed.value.message.startswith("npm package evil could not be fetched: ")
    assert why in failed.value.message
    assert failed.value.details == {"package": "evil"}


async def test_a_tarball_that_leads_outside_or_is_invalid_is_refused(opened, registry, data_dir):
    registry.package("out", tarball=npm_tarball({"package/../../../x": "x"}, raw=True))
    registry.package("none", tarball=b"this is no gzip")
    before = sorted((data_dir / "packages").glob("sets/*"))
    async with opened(npm_registry=registry.url) as engine:
        for name, why in (("out", "a member leads out of the package"), ("none", "header")):
            with pytest.raises(ProvisioningFailed) as failed:
                await said(engine, "1", name)
            assert failed.value.message.startswith("the npm packages could not be unpacked")
            assert f"{name}: " in failed.value.message
            assert why in failed.value.message
    assert sorted((data_dir / "packages").glob("sets/*")) == before


async def test_a_missing_package_is_named_without_the_login(opened, registry):
    registry.package("needs-gone", dependencies={"gone": "^1"})
    url = registry.url.replace("http://", "http://s3cret-token@")
    async with opened(npm_registry=url) as engine:
        with pytest.raises(ProvisioningFailed) as failed:
            await said(engine, "1", "needs-gone")
    assert failed.value.message == (
        "npm package gone@^1 (for needs-gone) cannot be installed: "
        "the registry has no such package or version"
    )
    assert "s3cret" not in repr((str(failed.value), failed.value.details))
    assert set(registry.authorizations) == {"Bearer s3cret-token"}


async def test_oversized_packages_and_hanging_registries_are_abandoned(opened, registry):
    registry.package("large", files={"noise": bytes(range(256)) * 40_000})
    registry.answers["/large/-/large-1.0.0.tgz"] = b"x" * 2_000_000
    async with opened(npm_registry=registry.url, max_bytes=1_000_000) as engine:
        with pytest.raises(ProvisioningFailed, match="take more than 1000000 bytes"):
            await said(engine, "1", "large")
        registry.stall = threading.Event()
        registry.began.clear()
        asking = asyncio.ensure_future(said(engine, "1", "slow"))
        assert await asyncio.to_thread(registry.began.wait, PATIENCE_S)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await engine.list(all=True) == []


async def test_without_a_setting_the_registry_of_the_npm_configuration_is_used(tmp_path):
    """Where npm is installed; where it is not, the setting is required."""
    environ = {"npm_config_registry": "http://127.0.0.1:9/mine/", "HOME": str(tmp_path)}
    if shutil.which("npm", path="/usr/local/bin:/usr/bin:/bin") is not None:
        assert await configured_registry(tmp_path, environ) == "http://127.0.0.1:9/mine"
        return
    with pytest.raises(ProvisioningFailed, match="no registry of npm packages is configured"):
        await configured_registry(tmp_path, environ)


async def test_a_mirror_serves_files_under_the_path_of_the_original_registry(opened, registry):
    registry.package("kept", files={"index.js": "module.exports = 'kept'"})
    about = registry.answers["/kept"].replace(registry.url.encode(), b"http://192.0.2.1")
    registry.answers["/kept"] = about
    async with opened(npm_registry=registry.url) as engine:
        assert await said(engine, "console.log(require('kept'))", "kept") == "kept"
