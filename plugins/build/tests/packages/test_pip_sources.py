"""Source distributions from an index made here, built in real sandboxes without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import ProvisioningFailed
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from tests.packages.wheels import sdist, serving, wheel
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten_runtime.engine.engine import Engine

pytestmark = pytest.mark.anyio

# A build backend in the package itself, so that the tests need no setuptools.
BACKEND = """
import os, socket, zipfile
{top}
def get_requires_for_build_wheel(settings=None):
    return ["late"]
def build_wheel(directory, settings=None, metadata=None):
    import helper, late
    said = [helper.VERSION, late.VERSION, os.path.exists({mark!r}), "PIP_INDEX_URL" in os.environ]
    try:
        socket.create_connection(("127.0.0.1", {port}), 5)
    except OSError as exc:
        said.append(exc.strerror)
    try:
        open({mark!r} + "/ran", "w")
    except OSError:
        pass
    os.makedirs("/workspace/wheels", exist_ok=True)
    wheel("/workspace/wheels", "plain", "9.0", "VERSION = 'not its own'")
    return wheel(directory, "{name}", "1.0", "BUILT = %r" % said)
def wheel(directory, name, version, code):
    path = name + "-" + version + "-py3-none-any.whl"
    info = name + "-" + version + ".dist-info/"
    about = "Metadata-Version: 2.1\\nName: %s\\nVersion: %s\\nRequires-Dist: plain\\n"
    with zipfile.ZipFile(os.path.join(directory, path), "w") as made:
        made.writestr(name + ".py", code)
        made.writestr(info + "METADATA", about % (name, version))
        made.writestr(info + "WHEEL",
                      "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        made.writestr(info + "RECORD", "")
    return path
"""


def source(folder: Path, name: str, mark: Path, *, port: int = 9, requires: str = '"helper>=1"',
           top: str = "") -> None:  # fmt: skip
    backend = BACKEND.format(name=name, mark=str(mark), port=port, top=top)
    project = f'[build-system]\nrequires = [{requires}]\nbuild-backend = "backend"\n'
    project += 'backend-path = ["."]\n'
    sdist(folder, name, "1.0", pyproject_toml=project, backend_py=backend)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "index"
    for name in ("helper", "late", "plain"):
        wheel(path, name, "1.5")
    wheel(path, "outer", needs=["gamma"])
    return path


async def said(engine: Engine, code: str, *packages: str) -> str:
    result = await engine.run(RunRequest(code, options=SandboxOptions(pip_packages=packages)))
    return (result.stdout + result.stderr).decode().strip()


@pytest.mark.promise("P54")
@pytest.mark.long(
    reason="`make test` has sources that are refused, and npm scripts that run inside"
)
async def test_a_source_distribution_is_built_inside_with_what_it_requires(
    opened, folder, tmp_path
):
    mark = tmp_path / "host"
    mark.mkdir()
    with serving(folder) as index:
        port = int(index.url.rpartition(":")[2])
        source(folder, "gamma", mark, port=port)
        url = index.url.replace("http://", "http://me:s3cret@") + "/simple"
        async with opened(index_url=url) as engine:
            code = "import gamma, plain, outer; print(gamma.BUILT, plain.VERSION)"
            built = "['1.5', '1.5', False, False, 'Connection refused'] 1.5"
            assert await said(engine, code, "outer") == built
            count = len(index.asked)
            assert await said(engine, code, "outer") == built
            assert len(index.asked) == count, "the set is kept like one of wheels"
        async with opened(index_url=url, build=False) as engine:
            # The operator refuses builds, those of earlier too.
            with pytest.raises(ProvisioningFailed, match="gamma") as refused:
                await said(engine, code, "outer")
            assert refused.value.hint.endswith("are not built (packages.build)")
    assert list(mark.iterdir()) == []


@pytest.mark.promise("P54")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"top": "raise SystemExit('the compiler is missing')"}, "the compiler is missing"),
        pytest.param(
            {"requires": '"helper @ http://192.0.2.1/x.whl"'},
            "a build requirement is an address",
            marks=pytest.mark.long(reason="`make test` has such a dependency"),
        ),
        pytest.param(
            {"requires": '"helper>=9"'},
            "No matching distribution found for helper>=9",
            marks=pytest.mark.long(reason="`make test` has another reason of pip"),
        ),
    ],
)
async def test_a_source_that_cannot_be_built_is_named_with_the_reason(
    opened, folder, tmp_path, change, why
):
    source(folder, "gamma", tmp_path, **change)
    async with opened(find_links=folder) as engine:
        with pytest.raises(ProvisioningFailed) as failed:
            await said(engine, "1", "gamma")
        assert why in failed.value.message
        assert failed.value.hint


@pytest.mark.long(reason="`make test` has it for npm")
async def test_an_archive_that_does_not_match_its_digest_is_refused(opened, folder, tmp_path):
    with serving(folder) as index:
        source(folder, "gamma", tmp_path)
        index.answers["/simple/gamma/"] = (
            b'<a href="/files/gamma-1.0.tar.gz#sha256=' + b"0" * 64 + b'">gamma-1.0.tar.gz</a>'
        )
        async with opened(index_url=f"{index.url}/simple") as engine:
            with pytest.raises(ProvisioningFailed, match="is not what the index says"):
                await said(engine, "1", "gamma")


async def test_an_index_cannot_name_a_file_of_this_machine(opened, folder, tmp_path):
    source(tmp_path / "private", "gamma", tmp_path)
    with serving(folder) as index:
        path = tmp_path / "private" / "gamma-1.0.tar.gz"
        index.answers["/simple/gamma/"] = f'<a href="file://{path}">gamma-1.0.tar.gz</a>'.encode()
        async with opened(index_url=f"{index.url}/simple") as engine:
            with pytest.raises(ProvisioningFailed) as failed:
                await said(engine, "1", "gamma")
    assert "the index names a file of this machine: gamma-1.0.tar.gz" in failed.value.message


@pytest.mark.promise("P54")
@pytest.mark.parametrize("build", few([False, True]))
async def test_a_dependency_that_is_an_address_is_never_fetched_or_run(
    opened, folder, tmp_path, build
):
    """pip's `--only-binary` does not cover such a dependency: its setup.py ran on the host."""
    mark = tmp_path / "ran-on-the-host"
    sdist(tmp_path / "elsewhere", "pwn", "1.0", f"open({str(mark)!r}, 'w')")
    with serving(tmp_path / "elsewhere") as other:
        wheel(folder, "innocent", needs=[f"pwn @ {other.url}/files/pwn-1.0.tar.gz"])
        async with opened(find_links=folder, build=build) as engine:
            with pytest.raises(ProvisioningFailed, match="is an address"):
                await said(engine, "1", "innocent")
        assert other.asked == []
    assert not mark.exists()


@pytest.mark.long(reason="`make test` builds one that requires something")
async def test_a_build_may_require_nothing(opened, folder, tmp_path):
    source(folder, "gamma", tmp_path, requires="")
    async with opened(find_links=folder) as engine:
        with pytest.raises(ProvisioningFailed, match="No module named 'helper'"):
            await said(engine, "1", "gamma")
