"""Every distribution as a wheel: what it holds, and that it installs and goes without rest."""

from __future__ import annotations

import sysconfig
import tomllib
import zipfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts.distributions import CLIENT, RUNTIME, directories, installs, projects
from tests.client.http.served import served as serving
from tests.packaging.conftest import ROOT, make_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.client.http.served import Served
    from tests.packaging.conftest import Environment

# The first of them builds all wheels.
pytestmark = pytest.mark.timeout(600)
NAMES = sorted(projects())
PLUGINS = [path for path in directories() if path.parent.name == "plugins"]


def _files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def _wheel(wheels: Path, name: str) -> Path:
    (path,) = wheels.glob(f"{name.replace('-', '_')}-*.whl")
    return path


def test_no_two_wheels_have_a_file_in_common(wheels):
    counts = Counter(name for wheel in wheels.glob("*.whl") for name in _files(wheel))
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_wheel_holds_one_package_and_its_metadata(wheels, name):
    tops = {file.split("/")[0] for file in _files(_wheel(wheels, name))}
    (info,) = (top for top in tops if top.endswith(".dist-info"))
    data = {top for top in tops if top.endswith(".data")}
    assert bool(data) is (name == RUNTIME)
    (package,) = tops - {info} - data
    assert package == ("sandkasten" if name == CLIENT else name.replace("-", "_"))
    assert f"{info}/licenses/LICENSE" in _files(_wheel(wheels, name))


@pytest.mark.parametrize("name", NAMES)
def test_all_have_one_version_and_require_exactly_that(name):
    project = projects()[name]
    needs = [*project.get("dependencies", ())]
    needs += [line for lines in project.get("optional-dependencies", {}).values() for line in lines]
    ours = [line for line in needs if line.startswith("sandkasten-")]
    assert project["version"] == projects()[RUNTIME]["version"]
    assert [line for line in ours if not line.endswith(f"=={project['version']}")] == []


def test_an_extra_of_the_runtime_installs_every_plugin():
    reached = {
        name for extra in projects()[RUNTIME]["optional-dependencies"] for name in installs(extra)
    }
    assert reached == set(NAMES)


@pytest.mark.parametrize("directory", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_has_a_page_tests_and_the_name_of_its_directory(directory):
    project = tomllib.loads((directory / "pyproject.toml").read_text())["project"]
    assert project["name"] == f"sandkasten-{directory.name.replace('_', '-')}"
    assert (directory / "README.md").read_text().startswith(f"# {project['name']}\n")
    assert any((directory / "tests").glob("test_*.py"))
    assert (directory / "src" / f"sandkasten_{directory.name}" / "__init__.py").is_file()


def test_types_are_checked_in_every_distribution():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    checked = set(settings["mypy_path"].split(":"))
    sources = {str((path / "src").relative_to(ROOT)) for path in directories()}
    assert {f"$MYPY_CONFIG_FILE_DIR/{source}" for source in sources} <= checked


@pytest.fixture(scope="module")
def runtime(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheels of client and runtime and the libraries of this environment."""
    return _with_libraries(wheels, tmp_path_factory.mktemp("runtime"), CLIENT, RUNTIME)


@pytest.fixture(scope="module")
def client(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel of the client and the libraries of this environment."""
    return _with_libraries(wheels, tmp_path_factory.mktemp("client"), CLIENT)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served") / "data") as daemon:
        yield daemon


def _with_libraries(wheels: Path, folder: Path, *names: str) -> Environment:
    environment = make_environment(folder)
    for name in names:
        environment.install("--no-deps", "--no-index", str(_wheel(wheels, name)))
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.suffix != ".pth" and "sandkasten" not in path.name:
            with suppress(FileExistsError):
                (environment.site / path.name).symlink_to(path)
    return environment


def test_the_runtime_alone_runs_a_sandbox(runtime):
    code = (
        "from sandkasten import Sandbox\nwith Sandbox() as box: print(box.exec('echo 42').output)"
    )
    done = runtime.run("python", "-W", "error", "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n\n", "")


SANDBOX_HERE = """
from sandkasten import Sandbox, SandkastenError
try:
    Sandbox()
except SandkastenError as error:
    print(error.code, error.message, error.hint, sep="\\n")
"""


def test_the_client_alone_names_the_runtime_where_it_is_needed(client):
    done = client.run("python", "-W", "error", "-c", SANDBOX_HERE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "BACKEND_UNAVAILABLE",
        "the runtime, which makes sandboxes in this process, is not installed (no module named "
        "sandkasten_runtime)",
        "name a daemon (url=…, or SANDKASTEN_URL), or pip install sandkasten-runtime",
    ]


def test_the_client_alone_uses_a_daemon(client, served):
    code = (
        "from sandkasten import Sandbox\n"
        f"with Sandbox(url={served.url!r}, api_key={served.key!r}) as box:\n"
        "    print(box.exec('echo 42').output)"
    )
    done = client.run("python", "-W", "error", "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n\n", "")


@pytest.mark.parametrize("words", [("version",), ("run", "-c", "print(6*7)")])
def test_the_command_without_the_server_names_what_to_install(runtime, words):
    done = runtime.run("sandkasten", *words)
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr == (
        "error: the command line is not installed\nhint: pip install 'sandkasten-runtime[server]'\n"
    )


@pytest.mark.parametrize("directory", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_installs_beside_the_runtime_and_goes_without_rest(runtime, wheels, directory):
    name = f"sandkasten-{directory.name.replace('_', '-')}"
    before = {path for path in runtime.site.rglob("*") if "__pycache__" not in path.parts}
    runtime.install("--no-deps", "--no-index", str(_wheel(wheels, name)))
    done = runtime.run("python", "-c", f"import sandkasten_{directory.name}")
    assert (done.returncode, done.stderr) == (0, "")
    assert runtime.pip("uninstall", "--yes", name).returncode == 0
    after = {path for path in runtime.site.rglob("*") if "__pycache__" not in path.parts}
    assert after == before
