"""Directories of the host that a sandbox may write to, and what a hostile one makes of them."""

from __future__ import annotations

import os
import stat
import textwrap
from functools import partial
from typing import TYPE_CHECKING

import pytest

from sandkasten import PolicyDenied, Sandbox, run
from sandkasten.model.sandbox.cell_spec import HostMount, HostOwner
from sandkasten_runtime.linux import launcher
from sandkasten_runtime.linux.storage.host_mount_check import HostMountCheck
from tests.ordinary_user import OrdinaryUser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sandkasten.model.sandbox.host_mounts import MountRule

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="must be root to own files of another user"),
]

OWNER, GROUP = 4321, 4322
ENGINES = [
    "local",
    pytest.param("oci", marks=pytest.mark.long("the launcher mounts for local and oci alike")),
]

CALLS = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "open", "openat", "tmpfile", "creat", "mknod",
    "mknodat",
)  # fmt: skip
# Every call that can give a file a set-user-id bit; what it answers is the name of the errno.
SET_ID = r"""
import ctypes, errno, os, struct
libc = ctypes.CDLL(None, use_errno=True)
AT, CREATE = -100, os.O_CREAT | os.O_WRONLY
def call(name, number, *arguments):
    ctypes.set_errno(0)
    answer = libc.syscall(number, *arguments)
    print(name, "worked" if answer >= 0 else errno.errorcode[ctypes.get_errno()])
for bit in (0o4000, 0o2000):
    mode = bit | 0o755
    open("/code/t", "w").close()
    fd = os.open("/code/t", os.O_RDWR)
    call("chmod", 90, b"/code/t", mode)
    call("fchmod", 91, fd, mode)
    call("fchmodat", 268, AT, b"/code/t", mode)
    call("fchmodat2", 452, AT, b"/code/t", mode, 0)
    call("open", 2, b"/code/a", CREATE, mode)
    call("openat", 257, AT, b"/code/b", CREATE, mode)
    call("tmpfile", 257, AT, b"/code", os.O_TMPFILE | os.O_WRONLY, mode)
    call("creat", 85, b"/code/c", mode)
    call("mknod", 133, b"/code/d", 0o100000 | mode, 0)
    call("mknodat", 259, AT, b"/code/e", 0o100000 | mode, 0)
    how = struct.pack("QQQ", CREATE, mode, 0)
    call("openat2", 437, AT, b"/code/f", how, len(how))
call("chmod without the bits", 90, b"/code/t", 0o755)
call("open with an unused mode", 257, AT, b"/code/t", os.O_RDONLY, 0o4755)
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    made = tmp_path / "code"
    made.mkdir()
    (made / "sub").mkdir()
    (made / "sub" / "old").write_text("old\n")
    for path in (made, made / "sub", made / "sub" / "old"):
        os.chown(path, OWNER, GROUP)
    (made / "roots").write_text("root's\n")
    tmp_path.chmod(0o755)
    return made


@pytest.fixture
def make(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: Path
) -> Iterator[Callable[..., Sandbox]]:
    monkeypatch.setenv("SANDKASTEN_POLICY_MOUNTS", f"code={code}:/code:rw,shown={code}:/shown")
    make = partial(Sandbox, data_dir=tmp_path / "data")
    yield make
    for info in Sandbox.list(data_dir=tmp_path / "data"):
        Sandbox.attach(info.id, data_dir=tmp_path / "data").close()


def _modes(directory: Path) -> dict[str, int]:
    return {one.name: stat.S_IMODE(one.lstat().st_mode) for one in directory.iterdir()}


@pytest.mark.promise("P83")
@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_sandbox_writes_belongs_to_the_owner_of_the_directory(make, code, engine):
    with make(mounts=["code"], backend=engine) as box:
        assert [(one.name, one.mode) for one in box.info().mounts] == [("code", "rw")]
        ran = box.exec("cd /code && stat -c %u:%g . roots && echo new >> sub/old && mkdir d")
        assert (ran.stdout, ran.exit_code) == ("1000:1000\n65534:65534\n", 0)
        box.write("/code/by-file-method", "x")
        for hostile in (
            "echo x >> /code/roots",
            "chown 0 /code/sub",
            "chgrp 0 /code/sub",
            "mknod /code/null c 1 3",
        ):
            assert box.exec(hostile).exit_code != 0, hostile
        options = box.exec("grep ' /code ' /proc/self/mountinfo").stdout.split()[5]
        assert {"rw", "nosuid", "nodev"} <= set(options.split(","))
    assert (code / "sub" / "old").read_text() == "old\nnew\n"
    assert (code / "roots").read_text() == "root's\n"
    made = {one.name: (one.stat().st_uid, one.stat().st_gid) for one in code.iterdir()}
    ours = (OWNER, GROUP)
    assert made == {"sub": ours, "d": ours, "by-file-method": ours, "roots": (0, 0)}


@pytest.mark.promise("P83")
@pytest.mark.parametrize("engine", ENGINES)
def test_no_call_puts_a_set_id_bit_on_a_file_of_the_host(make, code, engine):
    with make(mounts=["code"], backend=engine) as box:
        ran = box.exec(["python3", "-c", SET_ID])
        *refused, chmod, opened = ran.stdout.splitlines()
        assert refused == [*(f"{one} EPERM" for one in CALLS), "openat2 ENOSYS"] * 2, ran.stderr
        assert (chmod, opened) == (
            "chmod without the bits worked",
            "open with an unused mode worked",
        )
        box.write("/code/w", "x", mode=0o4755)
        assert box.exec("cp /bin/true /code/t && chmod u+s,g+s /code/t").exit_code != 0
    assert [name for name, mode in _modes(code).items() if mode & 0o6000] == []


@pytest.mark.promise("P83")
def test_root_inside_is_the_owner_of_the_directory_and_never_root_of_the_host(
    make_box, busybox, code
):
    mount = HostMount(str(code), "/code", below="", owner=HostOwner(OWNER, GROUP))
    with make_box(busybox, profile="dev", mounts=(mount,)) as box:
        made = box.exec("id -u; cd /code && cp /bin/busybox b && chmod 755 b && stat -c %u b")
        assert (made.text, made.code) == ("0\n0\n", 0)
        for hostile in (
            "chmod 4755 /code/b",
            "chmod 2755 /code/b",
            "chown 1000 /code/b",
            "mknod /code/null c 1 3",
            "echo x >> /code/roots",
            "rm -f /code/roots && touch /code/roots && chmod 6755 /code/roots",
        ):
            assert box.exec(hostile).code != 0, hostile
    found = (code / "b").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (OWNER, GROUP, 0o755)
    assert os.listxattr(code / "b") == []


@pytest.mark.long("a sandbox without a writable mount, to show that the filter is for those")
def test_a_sandbox_without_a_writable_mount_may_set_the_bits_in_its_workspace(make):
    with make(mounts=["shown"]) as box:
        assert box.exec("touch t && chmod 4755 t && stat -c %a t").stdout == "4755\n"
        assert "Read-only file system" in box.exec("touch /shown/new").stderr


@pytest.mark.promise("P83")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_request_may_name_a_directory_below_the_mount_but_no_link(make, code, tmp_path, engine):
    with make(mounts=["code/sub"], backend=engine) as box:
        hostile = "cat /code/old; ln -s /etc /code/out; ln -s .. /code/up; mkfifo /code/pipe"
        assert box.exec(hostile).stdout == "old\n"
    for below in ("sub/out", "sub/up", "sub/out/ssl", "sub/gone", "sub/old/x"):
        with pytest.raises(PolicyDenied, match="mount code"):
            make(mounts=[f"code/{below}"], backend=engine)
    for below in ("..", "sub/../..", "/etc", "sub//", "."):
        with pytest.raises(PolicyDenied, match="a request cannot mount the path"):
            make(mounts=[f"code/{below}"], backend=engine)
    with pytest.raises(PolicyDenied, match="neither a directory nor a file"):
        make(mounts=["code/sub/pipe"], backend=engine)
    with pytest.raises(PolicyDenied, match="is not a directory"):
        make(mounts=["code/sub/old"], backend=engine)
    assert Sandbox.list(data_dir=tmp_path / "data") == []


@pytest.mark.promise("P83")
@pytest.mark.parametrize("replacement", ["a link out", "a link beside", "root's directory"])
def test_a_directory_that_is_replaced_after_the_check_is_not_mounted(
    make, code, tmp_path, monkeypatch, replacement
):
    """The replacement happens between the check of the request and the mount."""
    resolve = HostMountCheck._resolve
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("secret")

    def then_replace(self: HostMountCheck, rules: list[MountRule]) -> tuple[HostMount, ...]:
        found = resolve(self, rules)
        (code / "sub").rename(code / "moved")
        if replacement == "a link out":
            (code / "sub").symlink_to(tmp_path / "secret")
        elif replacement == "a link beside":
            (code / "sub").symlink_to("moved")
        else:
            (code / "sub").mkdir()
        return found

    monkeypatch.setattr(HostMountCheck, "_resolve", then_replace)
    with pytest.raises(PolicyDenied, match="was replaced after it was checked"):
        make(mounts=["code/sub"])
    assert sorted(os.listdir(tmp_path / "secret")) == ["key"]


def test_a_file_system_without_shifted_ids_is_named():
    told = launcher.trouble("host mount", "shift the ids of a mount", 95)
    assert (told.code, "idmapped" in told.hint) == ("BACKEND_UNAVAILABLE", True)


@pytest.mark.promise("P83")
def test_a_directory_of_root_is_refused(make, code, tmp_path):
    os.chown(code, 0, GROUP)
    with pytest.raises(PolicyDenied, match="belongs to root") as refused:
        make(mounts=["code"])
    assert "chown" in refused.value.hint
    os.chown(code, OWNER, 0)
    with pytest.raises(PolicyDenied, match="belongs to root"):
        make(mounts=["code"])
    # A directory of the operator whose parts belong to users.
    with make(mounts=["code/sub"]) as box:
        assert box.exec("cat /code/old").stdout == "old\n"


@pytest.mark.long("a second user namespace of an ordinary user")
@pytest.mark.promise("P83")
def test_an_ordinary_user_shares_directories_of_its_own():
    source = """
        import os
        from sandkasten import PolicyDenied, Sandbox
        home = os.environ["HOME"]
        os.environ["SANDKASTEN_POLICY_MOUNTS"] = f"own={home}/own:/own:rw,roots={home}/roots:/r:rw"
        with Sandbox(mounts=["own"]) as box:
            box.exec("echo x > /own/new; cp /bin/true /own/t; chmod 4755 /own/t")
        found = os.stat(f"{home}/own/new")
        assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())
        assert os.stat(f"{home}/own/t").st_mode & 0o6000 == 0
        try:
            Sandbox(mounts=["roots"])
        except PolicyDenied as exc:
            print(exc.message)
    """
    with OrdinaryUser() as user:
        for name in ("own", "roots"):
            (user.home / name).mkdir()
        owner = user.home.stat()
        os.chown(user.home / "own", owner.st_uid, owner.st_gid)
        os.chown(user.home / "roots", 0, 0)
        ran = user.python("-c", textwrap.dedent(source), timeout_s=100)
    assert "belongs to root" in ran.stdout, ran.stderr


def test_a_one_shot_writes_to_a_mount_too(make, code, tmp_path):
    ran = run("open('/code/made', 'w').write('x')", mounts=["code"], data_dir=tmp_path / "data")
    assert ran.exit_code == 0, ran.stderr
    assert (code / "made").stat().st_uid == OWNER
