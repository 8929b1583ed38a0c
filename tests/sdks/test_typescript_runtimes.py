"""The package of the TypeScript client, installed in an empty project, in every runtime."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests import environments
from tests.client.http.served import served
from tests.patience import FAR_TOO_LATE_S
from tests.previews.browser import chromium
from tests.sdks.typescript import variables

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.root, pytest.mark.long(reason="it installs compilers and runtimes")]
TOLD = {
    "exec": [3, "out\n", "err\n"],
    "stream": "one\ntwo\n",
    "read": "grüße als Strom",
    "part": "als Strom",
    "terminal": True,
    "abort": "AbortError",
    "missing": True,
    "refused": "ExecNotFound",
    "stranger": True,
    "run": "42\n",
}
MAIN = """\
import { drive } from "./drive.js";

const told = await drive(process.env["SANDKASTEN_API_KEY"] ?? "");
console.log(JSON.stringify(told));
"""
COMPILED = {
    "compilerOptions": {
        "strict": True,
        "exactOptionalPropertyTypes": True,
        "module": "NodeNext",
        "target": "ES2022",
        "lib": ["ES2022", "ESNext.Disposable", "DOM"],
        # The types of the package must not need those of Node.
        "types": ["node"],
        "skipLibCheck": False,
    },
    "files": ["main.ts"],
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with served(tmp_path_factory.mktemp("runtimes") / "data", backend="local") as one:
        yield one


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """An empty project with the packed client in it, compiled."""
    package, home = environments.typescript(), tmp_path_factory.mktemp("project")
    # A copy, because packing compiles, and another test may use what is compiled.
    copy = home / "checkout" / "sdks" / "typescript"
    ignored = shutil.ignore_patterns("node_modules", "dist*", "tests", "LICENSE")
    shutil.copytree(package, copy, ignore=ignored)
    (copy / "node_modules").symlink_to(package / "node_modules")
    shutil.copy(environments.ROOT / "LICENSE", home / "checkout")
    packed = _run([environments.npm(), "pack", "--silent", "--pack-destination", home], copy)
    archive = home / packed.strip().splitlines()[-1]
    names = _run(["tar", "-tzf", archive], home).split()
    assert "package/LICENSE" in names
    assert "package/dist/node/index.d.ts" in names
    assert [name for name in names if "test" in name or name.endswith("src/index.ts")] == []
    (home / "package.json").write_text('{"type": "module"}')
    quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--silent")
    pinned = json.loads((package / "package.json").read_text())["devDependencies"]
    tools = [f"{name}@{version}" for name, version in pinned.items()]
    _run([environments.npm(), "install", *quiet, f"./{archive.name}", *tools], home)
    installed = json.loads((home / "node_modules" / "sandkasten" / "package.json").read_text())
    assert "dependencies" not in installed
    shutil.copy(package / "tests" / "drive.ts", home)
    (home / "main.ts").write_text(MAIN)
    (home / "tsconfig.json").write_text(json.dumps(COMPILED))
    _run([environments.node(), "node_modules/typescript/bin/tsc"], home)
    return home


def test_the_package_works_in_an_empty_project(daemon, project):
    assert _driven([environments.node()], daemon, project) == TOLD


def test_the_package_works_in_deno(daemon, project):
    deno = environments.javascript("deno")
    found = _driven([deno, "run", "--allow-all", "--node-modules-dir=manual"], daemon, project)
    assert _without_refusal(found) == _without_refusal(TOLD)


def test_the_package_works_in_bun(daemon, project):
    found = _driven([environments.javascript("bun"), "run"], daemon, project)
    assert _without_refusal(found) == _without_refusal(TOLD)


async def test_a_bundle_works_in_a_page_of_the_daemon(daemon, project):
    (project / "page.js").write_text(
        'import { drive } from "./drive.js";\nglobalThis.drive = drive;\n'
    )
    words = [environments.javascript("esbuild"), "page.js", "--bundle", "--format=iife"]
    bundle = _run([*words, "--platform=browser"], project)
    # The entry point for Node is not in it.
    assert '"node:' not in bundle
    async with chromium() as browser, browser.page() as page:
        await page.open(f"{daemon.url}/healthz")
        await page.run(f"{bundle}; 0")
        # Once, and looked for later: one call of the protocol has a shorter patience.
        await page.run(
            f"drive({json.dumps(daemon.key)}).catch((error) => ({{failed: String(error.stack)}}))"
            ".then((told) => { globalThis.told = JSON.stringify(told); }); 0"
        )
        told = json.loads(await page.until("globalThis.told"))
    assert _without_refusal(told) == _without_refusal(TOLD)


def _without_refusal(told: dict[str, object]) -> dict[str, object]:
    """Leave out why a WebSocket was refused, which only our own socket is told."""
    return {**told, "refused": None}


def _driven(words: list[str], daemon, project: Path) -> dict[str, object]:
    env = {**variables(daemon), "HOME": str(project), "DENO_NO_UPDATE_CHECK": "1"}
    found: dict[str, object] = json.loads(_run([*words, "main.js"], project, env))
    return found


def _run(words: list[str | Path], cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ} if env is None else env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * FAR_TOO_LATE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
