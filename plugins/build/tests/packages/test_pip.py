"""Python packages from folders and indexes made here, in real sandboxes."""

from __future__ import annotations

import asyncio
import os
import threading
import zipfile
from typing import TYPE_CHECKING

import pytest

from plugins.build.tests.packages.processes import fetchers
from sandkasten.errors import (
    Conflict,
    PolicyDenied,
    ProvisioningFailed,
    UnsupportedByBackend,
)
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.package_sets import PYTHON_DIR
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_build.packages import pip_packages
from sandkasten_build.packages.package_rules import PackageRules
from tests import imagekit, platform_choice
from tests.packages.wheels import sdist, serving, wheel
from tests.patience import PATIENCE_S
from tests.unisolated.backend import UnisolatedBackend

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten_runtime.engine.engine import Engine

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A package that depends on another and has a program."""
    path = tmp_path / "wheels"
    code = "import beta\ndef main():\n    print('alpha with beta', beta.VERSION)\n"
    wheel(path, "alpha", needs=["beta>=1"], scripts={"alpha-say": "alpha:main"},
          files={"alpha.py": code})  # fmt: skip
    wheel(path, "beta", "2.0")
    wheel(path, "beta", "0.5")
    return path


async def said(engine: Engine, code: str, *packages: str, runtime: str = "python") -> str:
    result = await engine.run(
        RunRequest(code, runtime, options=SandboxOptions(pip_packages=packages))
    )
    return (result.stdout + result.stderr).decode().strip()


@pytest.mark.promise("P54")
async def test_packages_and_dependencies_are_available_read_only_without_a_network(opened, folder):
    code = f"""
import alpha, beta, os, socket, subprocess
print(alpha.__file__, beta.VERSION, subprocess.getoutput("alpha-say"))
with open(alpha.__cached__, "rb") as file:
    # What python compiled at installation is still good: nothing is compiled at every start.
    stamp = int.from_bytes(file.read(16)[8:12], "little")
print(stamp == int(os.stat(alpha.__file__).st_mtime))
print(os.environ["PYTHONPATH"], [name for _, name in socket.if_nameindex()])
for attempt in (
    lambda: open("{PYTHON_DIR}/x", "w"), lambda: socket.create_connection(("192.0.2.1", 80), 5)
):
    try:
        attempt()
    except OSError as exc:
        print(exc.strerror)
"""
    async with opened(find_links=folder) as engine:
        assert (await said(engine, code, "alpha")).splitlines() == [
            f"{PYTHON_DIR}/alpha.py 2.0 alpha with beta 2.0",
            "True",
            f"{PYTHON_DIR} ['lo']",
            "Read-only file system",
            "Network is unreachable",
        ]
        # A sandbox that stays has them too, in its shell; and says so.
        info = await engine.create(
            CreateRequest(SandboxOptions(pip_packages=("alpha",)), session_key="k")
        )
        (mounted,) = info.mounts
        assert (mounted.name.partition(":")[0], mounted.target) == ("packages", PYTHON_DIR)
        result = await engine.exec(info.id, ExecRequest("alpha-say"))
        assert result.stdout == b"alpha with beta 2.0\n"
        again = await engine.create(
            CreateRequest(SandboxOptions(pip_packages=("alpha",)), session_key="k")
        )
        assert again.id == info.id
        # The same from another backend: no new installation, the very same directory.
        # An ordinary user has no other backend.
        for backend in ("oci", "gvisor") if os.geteuid() == 0 else ():
            other = await engine.create(
                CreateRequest(SandboxOptions(pip_packages=("alpha",), backend=backend))
            )
            result = await engine.exec(other.id, ExecRequest("alpha-say"))
            assert (backend, result.stdout) == (backend, b"alpha with beta 2.0\n")
            assert other.mounts == info.mounts
        with pytest.raises(Conflict) as error:
            await engine.create(
                CreateRequest(SandboxOptions(pip_packages=("beta",)), session_key="k")
            )
        details = error.value.details
        assert details["fields"] == ["pip_packages"]
        assert (details["requested"], details["session"]) == (["beta"], ["alpha"])


@pytest.mark.promise("P55")
@pytest.mark.long(reason="`make test` has concurrent requests for the package store")
async def test_concurrent_requests_fetch_the_same_packages_once(opened, folder, data_dir):
    with serving(folder) as index:
        settings = {"index_url": f"{index.url}/simple"}
        async with opened(**settings) as first, opened(**settings) as other:
            engines = [first, other, first, other]
            code = "import beta; print(beta.VERSION)"
            answers = await asyncio.gather(*(said(e, code, "beta", "alpha") for e in engines))
            assert answers == ["2.0"] * 4
            fetched = [path for path in index.asked if path.startswith("/files/")]
            assert sorted(fetched) == [
                "/files/alpha-1.0-py3-none-any.whl",
                "/files/beta-2.0-py3-none-any.whl",
            ]
            count = len(index.asked)
            assert await said(first, code, "alpha", "beta") == "2.0", "in another order"
            assert len(index.asked) == count, "nobody was asked again"


@pytest.mark.promise("P55")
@pytest.mark.long(reason="`make test` has it for a package of sources")
async def test_a_missing_package_is_named_with_the_last_lines_of_pip(opened, folder):
    with serving(folder) as index:
        url = index.url.replace("http://", "http://me:s3cret@") + "/simple"
        async with opened(index_url=url) as engine:
            with pytest.raises(ProvisioningFailed) as failed:
                await said(engine, "1", "alpha", "missing-one==3.0")
    error = failed.value
    assert error.message.startswith("pip could not fetch missing-one==3.0:\n")
    assert "ERROR: No matching distribution found for missing-one==3.0" in error.message
    assert error.details == {
        "package": "missing-one==3.0",
        "packages": ["alpha", "missing-one==3.0"],
    }
    assert error.hint.startswith("check the name and the version")
    assert "s3cret" not in repr((str(error), error.details))
    assert "Basic bWU6czNjcmV0" in index.authorizations, "and yet it was shown to the index"


@pytest.mark.promise("P54")
async def test_a_source_distribution_is_refused_where_the_operator_says_so(opened, tmp_path):
    mark = tmp_path / "ran"
    (tmp_path / "s").mkdir()
    sdist(tmp_path / "s", "evil", "1.0", f"open({str(mark)!r}, 'w').close()\n")
    async with opened(find_links=tmp_path / "s", build=False) as engine:
        with pytest.raises(ProvisioningFailed) as failed:
            await said(engine, "1", "evil")
    assert failed.value.details["package"] == "evil"
    assert failed.value.hint.endswith("source distributions are not built (packages.build)")
    assert not mark.exists()


@pytest.mark.promise("P54")
async def test_a_hostile_wheel_stays_in_its_sandbox(opened, tmp_path, canary):
    """Its code is imported only inside, where it finds no network and no host."""
    mark = tmp_path / "ran"
    run = f"open({str(mark)!r}, 'w')"
    wheel(
        tmp_path / "w",
        "evil",
        scripts={"evil": "evil:main"},
        files={
            "evil.pth": f"import os; {run}\n",
            "sitecustomize.py": f"try:\n    {run}\nexcept OSError: pass\n",
            "evil.py": f"import os\nprint(os.path.exists({str(canary)!r}))\n"
            "import socket\ntry:\n    socket.create_connection(('192.0.2.1', 80), 5)\n"
            "except OSError as exc:\n    print(exc.strerror)\n",
            ".wh.gone": "a name that means something to layers",
        },
    )
    async with opened(find_links=tmp_path / "w") as engine:
        assert await said(engine, "import evil", "evil") == "False\nNetwork is unreachable"
    assert not mark.exists()


async def test_a_wheel_that_leads_out_of_its_directory_is_refused(opened, tmp_path, data_dir):
    path = wheel(tmp_path / "w", "evil", "1.0")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../../../outside.py", "x")
    before = sorted((data_dir / "packages" / "sets").glob("*"))
    async with opened(find_links=tmp_path / "w") as engine:
        with pytest.raises(ProvisioningFailed) as failed:
            await said(engine, "1", "evil")
    assert failed.value.message.startswith("pip could not install the packages (evil), status 1:")
    assert sorted((data_dir / "packages" / "sets").glob("*")) == before


@pytest.mark.promise("P55")
async def test_an_endless_wheel_is_cut_off_and_leaves_nothing(opened, tmp_path):
    """40 MiB of zeroes in a wheel of 40 KiB, where 16 MiB are allowed."""
    wheel(tmp_path / "w", "bomb", files={"zeroes": b"\0" * (40 << 20)})
    async with opened(find_links=tmp_path / "w", max_bytes=16 << 20) as engine:
        with pytest.raises(ProvisioningFailed) as failed:
            await said(engine, "1", "bomb")
    assert "packages bomb take more than 16777216 bytes" in failed.value.message


@pytest.mark.promise("P55")
async def test_a_cancelled_request_leaves_nothing_running_and_the_next_one_succeeds(
    opened, folder, data_dir
):
    with serving(folder) as index:
        index.stall = threading.Event()
        url = index.url.replace("http://", "http://me:s3cret@") + "/simple"
        async with opened(index_url=url) as engine:
            asking = asyncio.ensure_future(said(engine, "import beta", "beta>=1"))
            assert await asyncio.to_thread(index.began.wait, PATIENCE_S)
            (line,) = fetchers(data_dir)
            assert "s3cret" not in line
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert fetchers(data_dir) == []
            assert list((data_dir / "packages" / "making").iterdir()) == []
            assert await engine.list(all=True) == []
            index.stall.set()
            code = "import beta; print(beta.VERSION)"
            assert await said(engine, code, "beta>=1") == "2.0"


@pytest.mark.long(reason="`make test` has one that is cut off and one that is cancelled")
async def test_a_slow_installation_is_ended_and_reported(opened, folder, data_dir):
    with serving(folder) as index:
        index.stall = threading.Event()
        async with opened(index_url=f"{index.url}/simple", timeout_seconds=3) as engine:
            with pytest.raises(ProvisioningFailed, match="took longer than") as failed:
                await said(engine, "1", "beta<9")
        assert "packages.timeout_seconds" in failed.value.hint
        assert fetchers(data_dir) == []


async def test_the_operator_can_disable_packages_or_list_the_allowed_ones(opened, folder):
    async with opened(find_links=folder, enabled=False) as engine:
        with pytest.raises(PolicyDenied) as error:
            await said(engine, "1", "beta")
        assert error.value.details == {"rule": "packages.enabled"}
    async with opened(find_links=folder, allow="beta") as engine:
        with pytest.raises(PolicyDenied) as error:
            await said(engine, "1", "alpha")
        assert error.value.details == {"field": "pip_packages", "package": "alpha"}


async def test_a_backend_without_host_mounts_refuses_packages(opened, folder, monkeypatch):
    async def create(self, sandbox_id, spec):
        assert spec.mounts
        raise UnsupportedByBackend("this backend cannot show files of the host")

    monkeypatch.setattr(UnisolatedBackend, "create", create)
    async with opened(find_links=folder, backend="unisolated") as engine:
        with pytest.raises(UnsupportedByBackend):
            await engine.create(CreateRequest(SandboxOptions(pip_packages=("beta",))))


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user cannot mount images")
async def test_an_image_without_pip_gets_packages_and_one_without_python_is_an_error(
    opened, folder, data_dir
):
    for name in ("debian", "busybox"):
        await asyncio.to_thread(platform_choice.image_named, name)
    (data_dir / "images").symlink_to(imagekit.CACHE / "store")
    async with opened(find_links=folder) as engine:
        wish = CreateRequest(SandboxOptions(image="debian", pip_packages=("alpha",)))
        info = await engine.create(wish)
        look = "alpha-say; python3 -m pip --version 2>&1 | grep -o 'No module.*'"
        result = await engine.exec(info.id, ExecRequest(look))
        assert result.stdout.decode() == "alpha with beta 2.0\nNo module named pip\n"
        with pytest.raises(ProvisioningFailed, match="the image has no python3"):
            await engine.create(
                CreateRequest(SandboxOptions(image="busybox", pip_packages=("alpha",)))
            )


async def test_wheels_are_chosen_for_the_python_of_the_image(tmp_path):
    """pip evaluates markers for the machine it runs on; ours is configured for the image."""
    folder = tmp_path / "w"
    needs = ['old; python_version < "3.9"', 'new; python_version >= "3.9"',
             'far; platform_machine == "s390x"']  # fmt: skip
    wheel(folder, "top", needs=needs)
    for name in ("old", "new"):
        wheel(folder, name)
    wheel(folder, "far", "1.0", tag="cp38-cp38-manylinux_2_17_s390x")
    wheel(folder, "far", "2.0", tag="cp311-cp311-manylinux_2_17_s390x")
    image = pip_packages._Python(
        version="3.8.5",
        implementation="cp",
        abi="cp38",
        platforms=("manylinux_2_28_s390x", "manylinux_2_17_s390x", "linux_s390x"),
        markers={"python_version": "3.8", "platform_machine": "s390x"},
    )
    into = tmp_path / "into"
    into.mkdir()
    rules = PackageRules(find_links=str(folder))
    fetching = pip_packages._Fetching(image, rules, {}, 60.0)
    assert await fetching.wheels(["top"], into, tmp_path) is None
    assert sorted(file.name for file in into.iterdir()) == [
        "far-1.0-cp38-cp38-manylinux_2_17_s390x.whl",
        "old-1.0-py3-none-any.whl",
        "top-1.0-py3-none-any.whl",
    ]


@pytest.mark.parametrize(
    "said_",
    [
        {},
        [],
        {"version": "3.11"},
        {"version": "3.11.1\n"},
        {"implementation": "-r"},
        {"abi": "--index-url=http://x"},
        {"platforms": ["--x"]},
        {"platforms": []},
        {"platforms": ["x"] * 201},
        {"markers": {"A B": ""}},
        {"markers": {f"m{number}": "" for number in range(41)}},
    ],
)
def test_output_of_a_hostile_image_never_becomes_an_argument(said_):
    sound = {"version": "3.11.1", "implementation": "cp", "abi": "cp311",
             "platforms": ["linux_x86_64"], "markers": {"python_version": "3.11"}}  # fmt: skip
    assert pip_packages._told(sound).version == "3.11.1"
    with pytest.raises((ValueError, KeyError, TypeError)):
        pip_packages._told({**sound, **said_} if said_ and isinstance(said_, dict) else said_)


def test_pip_gets_only_the_listed_environment_variables():
    environ = {"SANDKASTEN_API_KEY": "k", "AWS_SECRET": "s", "PIP_TARGET": "/",
               "PIP_INDEX_URL": "u", "HOME": "/h", "PIP_CERT": "/c", "https_proxy": "p",
               "PATH": "/evil"}  # fmt: skip
    plain = pip_packages._environment(PackageRules(), environ, "/s")
    assert plain.pop("PATH").startswith("/usr/local/sbin:")
    assert plain == {
        "LC_ALL": "C.UTF-8", "https_proxy": "p", "PIP_CERT": "/c", "PIP_INDEX_URL": "u",
        "HOME": "/h", "TMPDIR": "/s", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    # Once an operator names a source to us, what pip is configured to use otherwise is out.
    folder = pip_packages._environment(PackageRules(find_links="/w"), environ, "/s")
    assert (folder["PIP_FIND_LINKS"], folder["PIP_NO_INDEX"]) == ("/w", "1")
    assert (folder["PIP_CONFIG_FILE"], folder["HOME"]) == (os.devnull, "/s")
    assert "PIP_INDEX_URL" not in folder
    index = pip_packages._environment(PackageRules(index_url="https://u:p@h/s"), environ, "/s")
    assert index["PIP_INDEX_URL"] == "https://u:p@h/s"
    assert "PIP_NO_INDEX" not in index
