"""Build recipes: parsed, copied, run in sandboxes, and cached."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sandkasten
from sandkasten.errors import (
    BuildFailed,
    InvalidConfiguration,
    InvalidImage,
    InvalidRequest,
    UnsupportedByBackend,
)
from sandkasten.model.sandbox.network_policy import CLOSED, NetworkPolicy
from sandkasten_build.builder.build_plan import Copy, Run, SetEnv, SetUser, SetWorkdir
from sandkasten_build.builder.copy_step import Placed, pick, write_copies
from sandkasten_build.builder.recipe import Recipe, parse_recipe
from sandkasten_runtime.images.layers.image_store import LayerStore
from sandkasten_runtime.images.layers.overlay import Landing, Parent, landing
from sandkasten_runtime.images.layers.skeleton import make_build_skeleton, make_skeleton
from sandkasten_server.cli.main import main
from tests import imagekit
from tests.packages.wheels import wheel
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# ---- the recipe --------------------------------------------------------------------------------


def test_a_recipe_is_a_base_and_steps():
    tree = {
        "base": "debian:12",
        "steps": [
            {"copy": {"from": "./app/", "to": "/srv//app/", "mode": "0644", "owner": "1000:5"}},
            {"run": "make\nmake install", "network": False},
            {"env": {"A": "b", "N": 1}},
            {"workdir": "/srv/"},
            {"user": 1000},
            {"pip": ["six==1.16.0"]},
        ],
    }
    parsed = parse_recipe(tree)
    *steps, packages = parsed.steps
    assert (parsed.base, steps) == (
        "debian:12",
        [
            Copy(("app",), "/srv/app/", 0o644, "1000:5"),
            Run("make\nmake install"),
            SetEnv({"A": "b", "N": "1"}),
            SetWorkdir("/srv/"),
            SetUser("1000"),
        ],
    )
    assert isinstance(packages, Run)
    assert (packages.pip, packages.text) == (("six==1.16.0",), "pip six==1.16.0")


def test_a_recipe_without_steps_is_its_base():
    assert parse_recipe({"base": "a"}) == Recipe("a", ())


@pytest.mark.parametrize(
    "tree",
    [
        None,
        [],
        {},
        {"base": "../x"},
        {"base": "a", "stepps": []},
        {"base": "a", "steps": {}},
        {"base": "a", "steps": [{"run": "x"}] * 101},
    ],
)
def test_an_invalid_recipe_is_refused(tree):
    with pytest.raises((InvalidRequest, InvalidImage)):
        parse_recipe(tree)


@pytest.mark.promise("P53")
@pytest.mark.parametrize(
    "step",
    [
        "run x",
        {},
        {"run": "x", "copy": {}},
        {"rum": "x"},
        {"run": ""},
        {"run": ["ls"]},
        {"pip": []},
        {"pip": ["--index-url=x"]},
        {"pip": ["six"], "network": True},
        {"run": "a\0b"},
        {"run": "x", "netwrok": True},
        {"env": {"A": "b"}, "network": True},
        {"copy": "a"},
        {"copy": {"from": "a"}},
        {"copy": {"to": "/a"}},
        {"copy": {"from": "/etc/passwd", "to": "/a"}},
        {"copy": {"from": "../a", "to": "/a"}},
        {"copy": {"from": "a/../../b", "to": "/a"}},
        {"copy": {"from": "a", "to": "relative"}},
        {"copy": {"from": "a", "to": "/a/../../b"}},
        {"copy": {"from": "a", "to": "/workspace/a"}},
        {"copy": {"from": "a", "to": "/proc/a"}},
        {"copy": {"from": "a", "to": "/tmp"}},
        {"copy": {"from": "a", "to": "/a", "mode": 644}},
        {"copy": {"from": "a", "to": "/a", "mode": "4755"}},
        {"copy": {"from": "a", "to": "/a", "owner": "root"}},
        {"copy": {"from": "a", "to": "/a", "owner": "70000"}},
        {"copy": {"from": "a", "to": "/a", "chown": "1"}},
        {"env": ["A=b"]},
        {"env": {"A=": "b"}},
        {"env": {"A": True}},
        {"workdir": "srv"},
        {"user": "--privileged"},
        {"user": True},
    ],
)
def test_an_invalid_step_is_refused_with_its_number(step):
    with pytest.raises(InvalidRequest) as refused:
        parse_recipe({"base": "a", "steps": [{"run": "true"}, step]})
    assert refused.value.message.startswith("step 2 ")
    assert refused.value.hint


def test_a_step_has_its_own_network_or_that_of_the_recipe():
    steps: list[dict[str, object]] = [
        {"run": "x"},
        {"run": "x", "network": {"allow": ["b.test"]}},
        {"run": "x", "network": False},
    ]
    tree = {"base": "a", "network": {"allow": ["a.test"], "deny": ["c.test"]}, "steps": steps}
    assert parse_recipe(tree, allow=("d.test",)).steps == (
        Run("x", NetworkPolicy(allow=("a.test", "d.test"), deny=("c.test",))),
        Run("x", NetworkPolicy(allow=("b.test",))),
        Run("x", CLOSED),
    )
    assert parse_recipe({"base": "a", "steps": steps[:1]}).steps == (Run("x"),)


def test_an_invalid_network_in_a_recipe_is_refused():
    with pytest.raises(InvalidRequest, match="step 1: 'https://a' is not a valid rule"):
        parse_recipe({"base": "a", "steps": [{"run": "x", "network": {"allow": ["https://a"]}}]})
    for network in ("open", {"allow": "a.test"}, ["a.test"], 1.5):
        with pytest.raises(InvalidRequest):
            parse_recipe({"base": "a", "network": network}, allow=("b.test",))


# ---- copying -----------------------------------------------------------------------------------


def members(data: bytes) -> dict[str, tuple[str, int, tuple[int, int], str]]:
    """Return kind, mode, owner and content or target of each member."""
    entries = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            kind = "dir" if member.isdir() else "link" if member.issym() else "file"
            file = tar.extractfile(member) if member.isreg() else None
            content = member.linkname if file is None else file.read().decode()
            assert member.mtime == 315_532_800
            entries[member.name] = (kind, member.mode, (member.uid, member.gid), content)
    return entries


def written(context: Path, source: str, to: str, parents=(), mode=None, owner=(0, 0)):
    out = io.BytesIO()
    placed = [Placed(pick(context, source), parents, to)]
    write_copies(context, placed, out, mode=mode, owner=owner)
    return members(out.getvalue())


@pytest.fixture
def context(tmp_path) -> Path:
    folder = tmp_path / "context"
    (folder / "app" / "lib").mkdir(parents=True)
    (folder / "app" / "main.py").write_text("main")
    (folder / "app" / "main.py").chmod(0o640)
    (folder / "app" / "run").write_text("run")
    (folder / "app" / "run").chmod(0o4755)
    (folder / "app" / "lib" / "passwd").symlink_to("/etc/passwd")
    (folder / "out").symlink_to("/etc")
    for path in (folder / "app", folder / "app" / "lib"):
        path.chmod(0o755)
    return folder


def test_a_directory_is_copied_with_links_as_links_and_without_setuid(context):
    assert written(context, "app", "srv") == {
        "srv": ("dir", 0o755, (0, 0), ""),
        "srv/lib": ("dir", 0o755, (0, 0), ""),
        "srv/lib/passwd": ("link", 0o777, (0, 0), "/etc/passwd"),
        "srv/main.py": ("file", 0o640, (0, 0), "main"),
        "srv/run": ("file", 0o755, (0, 0), "run"),
    }


def test_mode_and_owner_are_those_of_the_step_and_directories_stay_searchable(context):
    entries = written(context, "app", "srv", mode=0o640, owner=(7, 8))
    assert entries["srv/main.py"] == ("file", 0o640, (7, 8), "main")
    assert entries["srv/lib"] == ("dir", 0o750, (7, 8), "")


def test_a_directory_of_the_image_keeps_its_mode_and_owner(context):
    parents = (Parent("root", 0o700, 3, 4),)
    assert written(context, "app/lib", "root", parents)["root"] == ("dir", 0o700, (3, 4), "")


@pytest.mark.promise("P53")
def test_a_link_is_copied_and_never_followed(context):
    assert written(context, "out", "etc2") == {"etc2": ("link", 0o777, (0, 0), "/etc")}
    with pytest.raises(BuildFailed) as refused:
        pick(context, "out/passwd")
    assert "goes through a link" in refused.value.message


@pytest.mark.parametrize("source", ["missing", "app/missing/x", "app/main.py/x"])
def test_a_missing_source_is_named(context, source):
    with pytest.raises(BuildFailed) as refused:
        pick(context, source)
    assert source in refused.value.message


def test_a_special_file_is_refused_at_once_by_a_copy_step(context):
    os.mkfifo(context / "app" / "fifo")
    with pytest.raises(BuildFailed) as refused:
        pick(context, "app")
    assert "fifo is not a file" in refused.value.message


@pytest.mark.promise("P53")
@pytest.mark.parametrize("name", [".wh.x", ".wh..wh..opq", ".wh.d/x"])
def test_a_file_named_like_a_whiteout_is_refused(context, name):
    path = context / "app" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    with pytest.raises(BuildFailed, match="cannot be in a layer"):
        written(context, "app", "srv")
    with pytest.raises(BuildFailed, match="cannot be in a layer"):
        written(context, "app/main.py", f"srv/{name}")


def test_the_cache_key_depends_on_content_and_not_on_timestamps(context):
    first = pick(context, "app").digest
    os.utime(context / "app" / "main.py", (1, 1))
    assert pick(context, "app").digest == first
    (context / "app" / "main.py").write_text("niam")
    changed = pick(context, "app").digest
    assert changed != first
    (context / "app" / "main.py").chmod(0o644)
    assert pick(context, "app").digest != changed
    (context / "app" / "empty").mkdir()
    assert pick(context, "app").digest != changed


def test_a_file_that_changes_during_the_copy_is_detected(context):
    picked = pick(context, "app")
    (context / "app" / "main.py").write_text("niam")
    with pytest.raises(BuildFailed) as refused:
        write_copies(context, [Placed(picked, (), "a")], io.BytesIO(), mode=None, owner=(0, 0))
    assert refused.value.message == "app/main.py changed while it was copied"


def test_names_of_any_bytes_are_copied_exactly(context):
    odd = os.fsdecode(b"new\nline \xff")
    (context / "app" / "lib" / odd).write_text("odd")
    assert written(context, "app/lib", "x")[f"x/{odd}"][3] == "odd"


def test_a_target_path_follows_the_links_of_the_image(tmp_path):
    low, high = tmp_path / "low", tmp_path / "high"
    (low / "usr" / "bin").mkdir(parents=True)
    (low / "usr").chmod(0o755)
    (low / "usr" / "bin").chmod(0o711)
    (low / "bin").symlink_to("usr/bin")
    (low / "abs").symlink_to("/usr/../bin")
    (low / "loop").symlink_to("loop")
    (low / "file").write_text("x")
    (low / "host").symlink_to(str(tmp_path))
    high.mkdir()
    trees = [str(low), str(high)]
    usr = Parent("usr", 0o755, os.getuid(), os.getgid())
    both = (usr, Parent("usr/bin", 0o711, os.getuid(), os.getgid()))
    for path in ("/usr/bin", "/bin", "/abs", "/abs/.", "/../bin"):
        assert landing(trees, path) == Landing(both, there=True), path
    assert landing(trees, "/bin/new/er") == Landing(
        (*both, Parent("usr/bin/new"), Parent("usr/bin/new/er")), there=False
    )
    assert landing(trees, "/loop") is None
    assert landing(trees, "/file/x") is None
    # A link of an image leads to the image's own files, whatever it says.
    outside = landing(trees, "/host")
    assert outside is not None
    assert not outside.there
    os.mknod(high / "usr", 0o20666, os.makedev(0, 0))
    assert landing(trees, "/usr/bin") == Landing((Parent("usr"), Parent("usr/bin")), there=False)


# ---- building ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    """One data directory for the module, with a busybox in its store."""
    path = Path(tempfile.mkdtemp(prefix="pytest-of-steps-", dir="/var/tmp"))
    sandkasten.Images(data_dir=path).import_archive(imagekit.busybox_tar(), name="box")
    sandkasten.Images(data_dir=path).import_archive(imagekit.empty_tar(), name="bare")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def images(shared) -> sandkasten.AsyncImages:
    return sandkasten.AsyncImages(data_dir=shared)


def recipe(folder: Path, *steps: Mapping[str, object], base: str = "box") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "Steps.yaml"
    # JSON is YAML.
    file.write_text(json.dumps({"base": base, "steps": steps}))
    return file


async def inside(shared: Path, name: str, command: str) -> str:
    async with sandkasten.AsyncSandbox(name, data_dir=shared) as box:
        result = await box.exec(["/bin/sh", "-c", command])
        assert result.exit_code == 0, result.output
        return str(result.stdout)


def below(tree: Path) -> set[str]:
    return {os.fspath(path.relative_to(tree)) for path in tree.rglob("*")}


def in_layer(shared: Path, layer: sandkasten.ImageLayer) -> set[str]:
    return below(Path(LayerStore(shared / "images").tree(layer.id)))


async def test_steps_build_an_image_that_sandboxes_can_use(shared, images, context):
    file = recipe(
        context,
        {"copy": {"from": "app", "to": "/srv/app", "owner": "1000"}},
        {"env": {"GREETING": "hello"}},
        {"workdir": "/opt/made here"},
        {"run": 'echo "$GREETING $(id -u) $PWD" > said\nchown 5:6 said\nrm /bin/vi'},
        {"user": "1000"},
    )
    updates: list[sandkasten.ImageProgress] = []
    built = await images.build_steps("app:1", file, progress=updates.append)
    assert (built.cached, built.image.names) == (False, ("app:1",))
    assert (built.image.workdir, built.image.user) == ("/opt/made here", "1000")
    assert built.image.env["GREETING"] == "hello"
    assert len(built.image.layers) == 3
    assert [update.step for update in updates][:3] == [
        "step 1/5: copy app to /srv/app",
        "step 2/5: env GREETING",
        "step 3/5: workdir /opt/made here",
    ]
    output = await inside(
        shared,
        "app:1",
        "cat '/opt/made here/said'; stat -c %u:%g '/opt/made here/said' /srv/app/main.py; "
        "ls /bin/vi /srv/app 2>/dev/null; echo $GREETING",
    )
    assert output.splitlines() == [
        "hello 0 /opt/made here",
        "5:6",
        "1000:1000",
        "/srv/app:",
        "lib",
        "main.py",
        "run",
        "hello",
    ]
    assert [image.names for image in await images.list() if not image.names] == []


@pytest.mark.promise("P53")
async def test_a_step_is_cached_until_something_changes(shared, images, context):
    file = recipe(
        context,
        {"copy": {"from": "app/main.py", "to": "/srv/"}},
        {"run": "cat /srv/main.py > /made; date +%N >> /made"},
    )
    first = await images.build_steps("twice:1", file)
    os.utime(context / "app" / "main.py", (1, 1))
    updates: list[sandkasten.ImageProgress] = []
    again = await images.build_steps("twice:1", file, progress=updates.append)
    assert (again.cached, again.image.id) == (True, first.image.id)
    assert all(update.step.endswith("(cached)") for update in updates)
    (context / "app" / "main.py").write_text("other")
    changed = await images.build_steps("twice:1", file)
    assert changed.cached is False
    assert changed.image.id != first.image.id
    fresh = await images.build_steps("twice:1", file, refresh=True)
    assert fresh.cached is False
    assert (await inside(shared, "twice:1", "head -c 5 /made")) == "other"


@pytest.mark.promise("P53")
async def test_a_step_that_changed_leaves_those_before_it_cached(images, context):
    first, two = {"run": "echo 1 > /one"}, {"run": "echo 2 > /two"}
    await images.build_steps("part:1", recipe(context, first, two))
    updates: list[sandkasten.ImageProgress] = []
    built = await images.build_steps(
        "part:1", recipe(context, first, {"run": "echo 3 > /two"}), progress=updates.append
    )
    assert built.cached is False
    assert [step.step for step in updates] == [
        "step 1/2: run echo 1 > /one (cached)",
        "step 2/2: run echo 3 > /two",
    ]


async def test_files_removed_or_replaced_by_a_step_are_so_in_the_image(shared, images, context):
    file = recipe(
        context,
        {"copy": {"from": "app", "to": "/srv/app"}},
        {"run": "rm -r /srv/app/lib; rm -r /srv/app; mkdir /srv/app; echo new > /srv/app/new"},
        {"run": "echo more > /srv/app/more; ln /srv/app/more /srv/app/same; chmod 700 /srv"},
    )
    await images.build_steps("gone:1", file)
    output = await inside(shared, "gone:1", "ls -a /srv/app 2>/dev/null || true; stat -c %a /srv")
    # The mode of /srv was changed with it, and the sandbox's own user sees that.
    assert output == "700\n"
    async with sandkasten.AsyncSandbox("gone:1", profile="dev", data_dir=shared) as box:
        listed = await box.exec(["/bin/ls", "/srv/app"])
        assert listed.stdout.split() == ["more", "new", "same"]
        linked = await box.exec(["/bin/stat", "-c", "%h", "/srv/app/more"])
        assert linked.stdout == "2\n"


@pytest.mark.promise("P53")
async def test_a_command_cannot_hide_files_with_a_whiteout_name(shared, images, context):
    for command in ("touch /.wh.bin", "mkdir /srv; touch /srv/.wh..wh..opq"):
        with pytest.raises(BuildFailed, match="cannot be in a layer"):
            await images.build_steps("marks:1", recipe(context, {"run": command}))
    with pytest.raises(InvalidImage):
        await images.inspect("marks:1")


@pytest.mark.promise("P53")
async def test_a_failed_command_is_reported_with_its_step_and_output(shared, images, context):
    file = recipe(
        context, {"run": "true"}, {"run": "seq 1 50\necho why >&2\nfalse\necho not reached"}
    )
    before = await images.list()
    with pytest.raises(BuildFailed) as failed:
        await images.build_steps("bad:1", file)
    first, *rest = failed.value.message.splitlines()
    assert first == "step 2/2 (run seq 1 50 …): the command failed with status 1:"
    assert rest[-2:] == ["50", "why"]
    assert len(rest) == 20
    assert failed.value.details["exit_code"] == 1
    assert await images.list() == before
    assert await sandkasten.AsyncSandbox.list(data_dir=shared) == []


@pytest.mark.promise("P53")
async def test_packages_of_a_step_are_those_of_this_machine(images, shared, tmp_path, monkeypatch):
    data = {"alpha-1.0.data/data/share/jupyter/kernels/alpha/kernel.json": "{}"}
    wheel(tmp_path / "wheels", "alpha", files=data, scripts={"alpha-say": "alpha:VERSION.upper"})
    monkeypatch.setenv("SANDKASTEN_PACKAGES_FIND_LINKS", str(tmp_path / "wheels"))
    await images.import_archive(imagekit.debian_tar(), name="python3")
    file = recipe(tmp_path / "recipe", {"pip": ["alpha"]}, base="python3")
    built = await images.build_steps("packed", file)
    assert len(built.image.layers) == 2
    output = await inside(
        shared,
        "packed",
        "alpha-say; cat /usr/local/share/jupyter/kernels/alpha/kernel.json; ls -A /opt;"
        " python3 -c 'import alpha; print(alpha)'",
    )
    # The packages are copied, and nothing is left of where the step saw them.
    assert output.endswith("/usr/local/lib/python3.11/dist-packages/alpha.py'>\n")


@pytest.mark.promise("P53")
async def test_a_step_sees_and_changes_the_image_alone(shared, images, context):
    """The image has /bin and nothing else; what the step adds is one file."""
    file = recipe(context, {"run": "find / -xdev -mindepth 1 ! -path '/bin/*' > /bin/seen"})
    built = await images.build_steps("alone:1", file)
    mounts = {"/proc", "/dev", "/sys", "/run", "/tmp", "/root", "/etc"}
    files = {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}
    assert set((await inside(shared, "alone:1", "cat /bin/seen")).split()) == {
        "/bin", *mounts, *files
    }  # fmt: skip
    assert in_layer(shared, built.image.layers[-1]) == {"bin", "bin/seen"}


@pytest.mark.promise("P53")
async def test_a_step_may_make_what_a_sandbox_adds(shared, images, context):
    """Each account and each directory that only sandboxes add, from the skeleton itself."""
    empty = shared / "empty"
    skeleton, builds = shared / "ours", shared / "builds"
    for directory in (empty, skeleton, builds):
        directory.mkdir()
    make_skeleton(skeleton, [str(empty)])
    make_build_skeleton(builds, [str(empty)], ())
    added = sorted(below(skeleton) - below(builds))
    assert {"workspace", "work", "home/sandbox", "home/user", "var/tmp", "etc/passwd"} <= {*added}
    accounts = [path for path in added if path.startswith("etc/")]
    directories = " ".join(f"/{path}" for path in added if path not in accounts)
    account = "me:x:1000:1000::/home/me:/bin/sh\nrunner:x:999:999::/:/bin/sh"
    steps = (
        f"mkdir {directories} && touch /workspace/of-the-step && printf '{account}\n' > /etc/passwd"
    )
    built = await images.build_steps("makes:1", recipe(context, {"run": steps}))
    layer = in_layer(shared, built.image.layers[-1])
    assert layer == {"etc", "etc/passwd", "workspace/of-the-step", *added} - {"etc/group"}
    # The mounts of a sandbox do not care, and the account is the image's.
    output = await inside(
        shared,
        "makes:1",
        "whoami; cat /etc/passwd; touch a; echo /work*/* /tmp/*; echo b > /var/tmp/b; cat /tmp/b",
    )
    assert output.splitlines() == ["me", *account.split("\n"), "/work/a /workspace/a /tmp/*", "b"]


@pytest.mark.promise("P53")
async def test_directories_keep_their_mode_and_owner_when_a_step_writes_there(
    shared, images, context
):
    first = {"run": "mkdir -p /etc /root && chown 7:8 /etc /root && chmod 750 /etc /root"}
    file = recipe(context, first, {"run": "touch /etc/a /root/a"})
    built = await images.build_steps("modes:1", file)
    tree = Path(LayerStore(shared / "images").tree(built.image.layers[-1].id))
    for name in ("etc", "root"):
        status = (tree / name).stat()
        assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o750, 7, 8)


async def test_a_step_cannot_reach_the_network(shared, images, context):
    file = recipe(context, {"run": "cat /proc/net/dev > /devices; ! nc -w 1 127.0.0.1 22"})
    await images.build_steps("net:1", file)
    devices = (await inside(shared, "net:1", "cat /devices")).splitlines()[2:]
    assert [line.split(":")[0].strip() for line in devices] == ["lo"]


async def test_processes_started_by_a_step_end_with_it(shared, images, context):
    file = recipe(
        context,
        {"run": "(while :; do date > /beat; done) & until [ -s /beat ]; do sleep 0.05; done"},
    )
    await images.build_steps("beat:1", file)
    assert await sandkasten.AsyncSandbox.list(data_dir=shared) == []
    assert await inside(shared, "beat:1", "sleep 0.1; wc -l < /beat")


async def test_an_image_without_a_shell_supports_copy_steps_only(images, context):
    copied = {"copy": {"from": "app/main.py", "to": "/main.py"}}
    built = await images.build_steps("bare:1", recipe(context, copied, base="bare"))
    assert len(built.image.layers) == 2
    with pytest.raises(BuildFailed) as failed:
        await images.build_steps("bare:1", recipe(context, copied, {"run": "x"}, base="bare"))
    assert failed.value.message == "step 2/2 (run x): the image has no /bin/sh"


@pytest.mark.promise("P53")
async def test_a_cancelled_build_leaves_nothing(shared, images, context):
    began = asyncio.Event()
    before = await images.list()
    file = recipe(context, {"run": "true"}, {"run": "echo begun; sleep 600"})
    building = asyncio.ensure_future(
        images.build_steps(
            "off:1", file, progress=lambda update: began.set() if update.text == "begun" else None
        )
    )
    await asyncio.wait_for(began.wait(), PATIENCE_S)
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert await sandkasten.AsyncSandbox.list(data_dir=shared) == []
    assert await images.list() == before
    assert os.listdir(shared / "images" / "making") == []


@pytest.mark.parametrize(
    ("base", "words"), [("none:1", "is not in the store"), ("host", "cannot be used as a base")]
)
async def test_an_invalid_base_image_is_named(images, context, base, words, monkeypatch):
    monkeypatch.setenv("SANDKASTEN_IMAGES_PULL", "never")
    with pytest.raises(InvalidImage) as refused:
        await images.build_steps("x:1", recipe(context, base=base))
    assert words in refused.value.message


@pytest.mark.parametrize(
    "text", ["base: [", "base: &a b\nsteps: [*a]", "!!python/object:x {}", "base: a\nbase: b"]
)
async def test_a_recipe_with_unsupported_yaml_is_refused(images, tmp_path, text):
    (tmp_path / "Steps.yaml").write_text(text)
    with pytest.raises(InvalidConfiguration) as refused:
        await images.build_steps("x:1", tmp_path / "Steps.yaml")
    assert "Steps.yaml" in refused.value.message


async def test_a_recipe_that_is_a_special_file_is_refused_at_once(images, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, "/dev/null"):
        with pytest.raises(InvalidConfiguration):
            async with asyncio.timeout(PATIENCE_S):
                await images.build_steps("x:1", path)


async def test_a_backend_without_writable_roots_refuses_a_build(shared, context):
    images = sandkasten.AsyncImages(data_dir=shared, backend="unisolated")
    with pytest.raises(UnsupportedByBackend):
        await images.build_steps("x:1", recipe(context, {"run": "echo unsupported > /x"}))


def test_the_command_line_counts_steps_and_quotes_output(shared, context, capfd):
    file = recipe(context, {"env": {"A": "b"}}, {"run": "echo said $A"})
    words = ["--data-dir", str(shared), "image", "build", "cli:1", "-f", str(file)]
    for cached in (False, True):
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(words)
        out, err = capfd.readouterr()
        assert (ended.value.code or 0, out) == (0, "cli:1\n")
        lines = err.splitlines()
        assert lines[0] == "step 1/2: env A"
        if cached:
            assert lines[1] == "step 2/2: run echo said $A (cached)"
            assert lines[2].startswith("cached: ")
        else:
            assert lines[1:3] == ["step 2/2: run echo said $A", "  said b"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--debian", "bookworm"])
    assert ended.value.code == 2
