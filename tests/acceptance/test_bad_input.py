"""Invalid input and incomplete hosts: a typed error with a hint, or a loss that is reported."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

import sandkasten
from sandkasten import Sandbox
from sandkasten.errors import SandkastenError
from scripts.distributions import sources
from tests.acceptance.conftest import REPOSITORY, leftovers
from tests.acceptance.conftest import sandkasten as command

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024 * 1024


def _refused(work: object, *codes: str) -> SandkastenError:
    with pytest.raises(SandkastenError) as caught:
        work()  # type: ignore[operator]
    assert caught.value.code in codes, caught.value
    assert caught.value.hint, caught.value
    assert type(caught.value).__name__ in sandkasten.__all__
    return caught.value


@pytest.mark.parametrize(
    "path", ["", "a\0b", "../x", "/workspace/../etc/passwd", "x" * 5000, "\ud800"]
)
def test_a_malformed_path_is_a_typed_error(path, data_dir, make):
    with make() as box:
        _refused(lambda: box.write(path, "x"), "INVALID_REQUEST")
        for verb in (box.read, box.stat, box.remove, box.ls, box.mkdir):
            _refused(functools.partial(verb, path), "INVALID_REQUEST")
        assert box.exec("echo ok").output == "ok\n"


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/proc/self/environ", "/dev/null", "/root/x", "/sys/x"]
)
def test_a_blocked_path_is_a_typed_error(path, data_dir, make):
    with make() as box:
        _refused(lambda: box.read(path), "FORBIDDEN", "FILE_NOT_FOUND")
        _refused(lambda: box.write(path, "x"), "FORBIDDEN")


def test_a_write_outside_the_writable_directories_is_a_typed_error(data_dir, make):
    with make() as box:
        for path in ("/usr/x", "/etc/x", "/x", "/var/x"):
            _refused(lambda path=path: box.write(path, "x"), "FORBIDDEN")


@pytest.mark.parametrize("cmd", ["", [], "a\0b", ["a\0b"], [""], "\ud800"])
def test_a_malformed_command_is_a_typed_error(cmd, data_dir, make):
    with make() as box:
        if cmd == "":
            assert box.exec(cmd).exit_code == 0  # a command that does nothing
        else:
            _refused(lambda: box.exec(cmd), "INVALID_REQUEST", "COMMAND_NOT_FOUND")


@pytest.mark.parametrize(
    "limits",
    [
        {"mem_limit_mb": -1},
        {"mem_limit_mb": 0},
        {"pids_limit": -5},
        {"cpu_limit": 0},
        {"cpu_limit": float("nan")},
        {"workspace_mb": -1},
        {"mem_limit_mb": True},
        {"mem_limit_mb": "many"},
        {"nonsense": 1},
        {"pids_limit": 1.5},
        {"workspace_mb": 10**12},
        {"exec_timeout_seconds": -1},
        {"mem_limit_mb": 100, "memory_mb": 200},
    ],
    ids=str,
)
def test_an_invalid_limit_is_a_typed_error(limits, data_dir, make):
    _refused(lambda: make(limits=limits), "INVALID_REQUEST")
    assert leftovers(data_dir) == []


@pytest.mark.parametrize("timeout", [-1, 0, float("inf"), float("nan"), 10**9, True, "soon"])
def test_an_invalid_timeout_is_a_typed_error(timeout, data_dir, make):
    with make() as box:
        _refused(lambda: box.exec("true", timeout_seconds=timeout), "INVALID_REQUEST")
        assert box.exec("echo ok").output == "ok\n"


@pytest.mark.parametrize(
    "name", ["", "1A", "A B", "A=B", "A\0", "ü", "A-B", "BASH_FUNC_x%%", "A" * 300, "\n"]
)
def test_an_invalid_variable_name_is_named_in_the_error(name, data_dir, make):
    _refused(lambda: make(env={name: "x"}), "INVALID_REQUEST")
    with make() as box:
        _refused(lambda: box.exec("true", env={name: "x"}), "INVALID_REQUEST")
        _refused(lambda: box.exec(["true"], env={name: "x"}), "INVALID_REQUEST")


def test_an_invalid_variable_value_is_named_in_the_error(data_dir, make):
    with make() as box:
        _refused(lambda: box.exec("true", env={"A": "x\0y"}), "INVALID_REQUEST")
        _refused(lambda: box.exec("true", env={"A": 3}), "INVALID_REQUEST")
        _refused(lambda: box.exec("true", env={"A": "x" * 200_000}), "PAYLOAD_TOO_LARGE")


@pytest.mark.slow_loop
def test_fifty_megabytes_of_code_are_a_typed_error(data_dir, make):
    code = "x = '" + "a" * (50 * MIB) + "'"
    error = _refused(lambda: sandkasten.run(code, data_dir=data_dir), "PAYLOAD_TOO_LARGE")
    assert "file" in error.hint
    with make() as box:
        _refused(lambda: box.exec("echo " + "x" * (50 * MIB)), "PAYLOAD_TOO_LARGE")
        _refused(lambda: box.exec(["echo", "x" * (50 * MIB)]), "PAYLOAD_TOO_LARGE")
        assert box.exec("echo ok").output == "ok\n"


@pytest.mark.slow_loop
def test_a_workspace_over_its_quota_is_a_typed_error(data_dir, make):
    with make(limits={"workspace_mb": 8}) as box:
        box.write("kept", b"old")
        error = _refused(lambda: box.write("kept", bytes(20 * MIB)), "QUOTA_EXCEEDED")
        assert "hint" in str(error)
        assert box.read("kept") == b"old"
        result = box.exec("head -c 20M /dev/zero >full")
        assert result.why is not None
        assert result.why.code == "QUOTA"


def test_a_missing_interpreter_is_a_typed_error(data_dir, make):
    with make() as box:
        _refused(lambda: box.exec(["no-such-interpreter", "x"]), "COMMAND_NOT_FOUND")
        _refused(lambda: box.run("x", runtime="cobol"), "INVALID_REQUEST")
        box.write("script", "#!/usr/bin/no-such-interpreter\n", mode=0o755)
        _refused(
            lambda: box.exec(["/workspace/script"]), "COMMAND_NOT_FOUND", "COMMAND_NOT_EXECUTABLE"
        )
        box.write("notes", "text", mode=0o644)
        _refused(lambda: box.exec(["/workspace/notes"]), "COMMAND_NOT_EXECUTABLE")
        _refused(lambda: box.exec(["/workspace"]), "COMMAND_NOT_EXECUTABLE")
    _refused(lambda: sandkasten.run("x", runtime="cobol", data_dir=data_dir), "INVALID_REQUEST")
    said = command("run", "--runtime", "cobol", "-c", "x")
    assert said.status == 125
    assert "hint:" in said.err


@pytest.mark.parametrize("image", ["--privileged", "-v", "no/such:image", "", "a b", "../x", "x\0"])
def test_a_missing_image_is_a_typed_error(image, data_dir, make):
    _refused(
        lambda: make(image=image),
        # A name in full is looked for in a registry, which may not be reachable.
        *("INVALID_IMAGE", "IMAGE_NOT_FOUND", "INVALID_REQUEST", "UNSUPPORTED_BY_BACKEND"),
        "REGISTRY_UNAVAILABLE",
    )


@pytest.mark.parametrize(
    "options",
    [{"network": "host"}, {"profile": "dev"}, {"profile": "root"}, {"backend": "other"}],
    ids=str,
)
def test_unavailable_isolation_is_refused_and_not_downgraded(options, data_dir, make):
    _refused(
        lambda: make(**options),
        "UNSUPPORTED_BY_BACKEND",
        "INVALID_REQUEST",
        "INVALID_CONFIGURATION",
    )


def test_missing_bubblewrap_is_a_typed_error(fresh_data_dir, monkeypatch):
    from sandkasten_runtime.backends.local import backend, probe

    for module in (backend, probe):
        monkeypatch.setattr(module, "find_bwrap", lambda: None)
    error = _refused(lambda: Sandbox(data_dir=fresh_data_dir / "other"), "BACKEND_UNAVAILABLE")
    assert "bubblewrap" in error.message
    assert "install" in error.hint
    assert leftovers(fresh_data_dir) == []


def test_missing_programs_are_a_typed_error(tmp_path):
    import asyncio

    from sandkasten.model.ids import new_sandbox_id
    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten_runtime.backends.local.backend import LocalBackend

    made = LocalBackend(tmp_path / "d", tmp_path / "no-runner", tmp_path / "no-launcher")
    ready = asyncio.run(made.probe())
    assert not ready.ready
    assert ready.remedy
    _refused(
        lambda: asyncio.run(made.create(new_sandbox_id(), CellSpec(image=Image("host")))),
        "BACKEND_UNAVAILABLE",
    )
    assert leftovers(tmp_path / "d") == []


ATTEMPT = textwrap.dedent(
    """
    import json, sys
    from sandkasten import Sandbox
    from sandkasten.errors import SandkastenError
    try:
        with Sandbox(data_dir=sys.argv[1]) as box:
            info = box.info() if callable(box.info) else box.info
            print(json.dumps({
                "ok": box.exec("echo ok").output,
                "unenforced": [[u.limit, u.reason, u.remedy] for u in info.unenforced],
            }))
    except SandkastenError as exc:
        print(json.dumps({"code": exc.code, "message": exc.message, "hint": exc.hint}))
    """
)


def _shown_python() -> str:
    """Return our interpreter as seen through the repository at /mnt."""
    inside = sys.executable.startswith(f"{REPOSITORY}/")
    return "/mnt" + sys.executable.removeprefix(str(REPOSITORY)) if inside else sys.executable


def _elsewhere(script: str, data_dir: Path, *, ordinary: bool = False) -> dict[str, object]:
    """Create a sandbox in a mount namespace that `script` has prepared."""
    become = (
        "setpriv --reuid=54321 --regid=54321 --clear-groups --inh-caps=-all " if ordinary else ""
    )
    if ordinary:
        os.chown(data_dir, 54_321, 54_321)
    shown = 'mount --bind "$1" /mnt; cd /mnt'
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "--", "sh", "-ec",
         f'{shown}; {script} {become} "$2" -c "$3" "$4"', "sh", str(REPOSITORY),
         _shown_python(),
         ATTEMPT, str(data_dir)],
        capture_output=True, text=True, timeout=60, check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(data_dir), "LANG": "C.UTF-8",
             "PYTHONPATH": SHOWN_SOURCES, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.stdout, done.stderr[-3000:]
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


SHOWN_SOURCES = ":".join(f"/mnt/{source}" for source in sources())

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="spoils a mount namespace of its own")


@needs_root
@pytest.mark.parametrize("ordinary", [False, True], ids=["root", "ordinary user"])
def test_the_same_request_works_on_a_complete_host(ordinary, fresh_data_dir):
    answer = _elsewhere("", fresh_data_dir, ordinary=ordinary)
    assert answer["ok"] == "ok\n"
    lost = [line[0] for line in answer["unenforced"]]  # type: ignore[attr-defined]
    if ordinary:
        assert "memory" in lost
        assert "cpu" in lost
    else:
        assert lost == []


@pytest.mark.promise("P26")
@needs_root
def test_cgroups_without_access_are_reported_as_unenforced(fresh_data_dir):
    script = (
        "for d in /sys/fs/cgroup /sys/fs/cgroup/*/; do "
        'mountpoint -q "$d" && mount -o remount,bind,ro "$d"; done; '
    )
    answer = _elsewhere(script, fresh_data_dir)
    assert answer.get("ok") == "ok\n", answer
    losses = {line[0]: (line[1], line[2]) for line in answer["unenforced"]}  # type: ignore[attr-defined]
    assert set(losses) >= {"memory", "pids", "cpu"}
    assert all(reason and remedy for reason, remedy in losses.values())


@pytest.mark.long(reason="`make test` has those without access")
@needs_root
def test_missing_cgroups_are_reported_as_unenforced(fresh_data_dir):
    script = "umount -l /sys/fs/cgroup/* 2>/dev/null; umount -l /sys/fs/cgroup 2>/dev/null; true;"
    answer = _elsewhere(script, fresh_data_dir)
    assert answer.get("ok") == "ok\n", answer
    assert {line[0] for line in answer["unenforced"]} >= {"memory", "pids", "cpu"}  # type: ignore[attr-defined]


@needs_root
def test_no_loop_devices_still_gives_a_workspace_with_a_quota(fresh_data_dir):
    answer = _elsewhere("mount --bind /dev/null /dev/loop-control;", fresh_data_dir)
    assert answer.get("ok") == "ok\n" or answer.get("hint"), answer


@needs_root
def test_forbidden_user_namespaces_are_a_typed_error(fresh_data_dir):
    """In a user namespace whose own limit on nested ones is 0; the host's is unchanged."""
    script = textwrap.dedent(
        """
        import ctypes, os, sys
        libc = ctypes.CDLL(None, use_errno=True)
        uid, gid = os.getuid(), os.getgid()
        assert libc.unshare(0x10000000) == 0
        open("/proc/self/setgroups", "w").write("deny")
        open("/proc/self/uid_map", "w").write(f"{uid} {uid} 1")
        open("/proc/self/gid_map", "w").write(f"{gid} {gid} 1")
        open("/proc/sys/user/max_user_namespaces", "w").write("0")
        os.execv(sys.argv[1], sys.argv[1:])
        """
    )
    (fresh_data_dir / "forbid.py").write_text(script)
    (fresh_data_dir / "forbid.py").chmod(0o755)
    fresh_data_dir.chmod(0o755)
    inner = fresh_data_dir / "inner"
    inner.mkdir()
    os.chown(inner, 54_321, 54_321)
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "--", "sh", "-ec",
         'mount --bind "$1" /mnt; cd /mnt; shift; exec setpriv --reuid=54321 --regid=54321 '
         '--clear-groups --inh-caps=-all /usr/bin/python3 "$@"', "sh", str(REPOSITORY),
         str(fresh_data_dir / "forbid.py"),
         _shown_python(), "-c", ATTEMPT, str(inner)],
        capture_output=True, text=True, timeout=60, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(inner), "LANG": "C.UTF-8",
             "PYTHONPATH": SHOWN_SOURCES, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.stdout, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer.get("code") == "BACKEND_UNAVAILABLE", answer
    assert "user_namespaces" in answer["hint"] or "user namespaces" in answer["hint"]
    assert list(inner.glob("cells/*")) == []


@needs_root
def test_a_read_only_data_directory_is_a_typed_error(fresh_data_dir):
    blocked = fresh_data_dir / "file"
    blocked.write_text("")
    _refused(
        lambda: Sandbox(data_dir=blocked / "below"), "INVALID_CONFIGURATION", "BACKEND_UNAVAILABLE"
    )
    _refused(
        lambda: Sandbox(data_dir="/proc/nowhere"), "INVALID_CONFIGURATION", "BACKEND_UNAVAILABLE"
    )


@pytest.mark.long(reason="`make test` fills a disk in test_full_host")
@needs_root
def test_a_full_disk_under_the_data_directory_is_a_typed_error(fresh_data_dir):
    """A 300 KB file system has no room for a workspace image; with more room it works."""
    script = f"mount -t tmpfs -o size=300k small {fresh_data_dir};"
    answer = _elsewhere(script, fresh_data_dir)
    assert answer.get("code") in (
        "QUOTA_EXCEEDED",
        "BACKEND_UNAVAILABLE",
        "INVALID_CONFIGURATION",
    ), answer
    assert answer["hint"]
    assert _elsewhere("", fresh_data_dir)["ok"] == "ok\n"


def test_an_unknown_argument_is_an_error(data_dir, make):
    with pytest.raises(TypeError):
        make(colour="red")
    with make() as box, pytest.raises(TypeError):
        box.exec("true", colour="red")
