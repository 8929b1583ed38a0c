"""The dev profile: what root inside can do, and that it gains nothing on the host."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from sandkasten.errors import InternalError, SandkastenError
from sandkasten.model.images.resolved_image import Image
from sandkasten_runtime.linux.confinement import capabilities, posture
from tests.security.harness import poll
from tests.shared_sandbox_cases import few

pytestmark = pytest.mark.root
GIVEN = capabilities.bits(capabilities.DEV_USER)


@pytest.fixture
def box(make_box, debian):
    with make_box(debian, profile="dev") as box:
        yield box
        assert box.exec(["echo", "ok"]).text == "ok\n"


@pytest.fixture(scope="module")
def shared(make_box, debian):
    with make_box(debian, profile="dev") as box:
        yield box


def run(box, command: str, **options) -> str:
    answer = box.exec(command, timeout_s=90, **options)
    assert answer.code == 0, (command, answer.text[-2000:], answer.stderr[-2000:])
    return answer.text


# ---- what it is for


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> bytes:
    """A package that runs a script as root, adds a user and gives it a file."""
    at = tmp_path_factory.mktemp("package")
    tree = at / "tiny"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/tiny").write_text("#!/bin/sh\necho tiny works\n")
    (tree / "usr/bin/tiny").chmod(0o755)
    (tree / "DEBIAN/control").write_text(
        "Package: tiny\nVersion: 1.0\nArchitecture: all\nMaintainer: Test <test@example.org>\n"
        "Description: a package for a test\n"
    )
    (tree / "DEBIAN/postinst").write_text(
        "#!/bin/sh\nset -e\nuseradd --system tinyd\ninstall -d -o tinyd /var/lib/tiny\n"
    )
    (tree / "DEBIAN/postinst").chmod(0o755)
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(at / "tiny.deb")],
        check=True, capture_output=True,
    )  # fmt: skip
    return (at / "tiny.deb").read_bytes()


@pytest.mark.promise("P08")
def test_a_package_is_installed_from_a_file(box, package):
    box.write("/workspace/tiny.deb", package)
    run(box, "apt-get install -y /workspace/tiny.deb")
    assert run(box, "tiny; stat -c %U /var/lib/tiny") == "tiny works\ntinyd\n"
    run(box, "apt-get remove -y tiny && test ! -e /usr/bin/tiny")


@pytest.mark.promise("P08")
@pytest.mark.long(reason="it builds a Debian mirror")
def test_a_package_is_installed_from_a_mirror_in_the_workspace(box, package, tmp_path):
    (tmp_path / "tiny.deb").write_bytes(package)
    index = subprocess.run(
        ["apt-ftparchive", "packages", "."], cwd=tmp_path, check=True, capture_output=True
    ).stdout
    box.mkdir("/workspace/mirror")
    box.write("/workspace/mirror/tiny.deb", package)
    box.write("/workspace/mirror/Packages", index)
    run(box, "echo 'deb [trusted=yes] file:/workspace/mirror ./' > /etc/apt/sources.list")
    run(box, "apt-get update && apt-get install -y tiny")
    assert run(box, "tiny") == "tiny works\n"


@pytest.mark.promise("P08")
def test_users_are_added_and_files_given_to_them(box):
    run(box, "useradd --create-home bob && touch /srv/x && chown bob:bob /srv/x")
    assert run(box, "stat -c '%U %u' /srv/x; ls -d /home/bob") == "bob 1001\n/home/bob\n"
    assert run(box, "setpriv --reuid bob --regid bob --clear-groups id -un") == "bob\n"
    assert box.exec("setpriv --reuid bob --regid bob --clear-groups touch /srv/y").code != 0


@pytest.mark.promise("P08")
@pytest.mark.long(reason="its image has a compiler and node; `make test` installs packages")
def test_a_program_is_compiled_and_run(box):
    box.write("/workspace/hello.c", b'#include <stdio.h>\nint main(void){puts("compiled");}\n')
    assert run(box, "cd /workspace && gcc -O2 -o hello hello.c && ./hello") == "compiled\n"
    run(box, "install hello /usr/local/bin/ && hello")


NODE = b"""
const fs = require('fs'), cp = require('child_process');
fs.mkdirSync('dist', {recursive: true});
const parts = ['a', 'b'].map(n => fs.readFileSync(`src/${n}.js`, 'utf8'));
fs.writeFileSync('dist/all.js', parts.join(''));
const made = cp.spawnSync(process.execPath, ['dist/all.js'], {encoding: 'utf8'});
cp.execSync('cp -r dist /opt/built');
process.stdout.write(made.stdout);
"""


@pytest.mark.promise("P08")
@pytest.mark.long(reason="its image has a compiler and node; `make test` installs packages")
def test_a_node_project_is_built(box):
    box.mkdir("/workspace/src")
    box.write("/workspace/src/a.js", b"const word = 'built';\n")
    box.write("/workspace/src/b.js", b"console.log(word);\n")
    box.write("/workspace/build.js", NODE)
    assert run(box, "cd /workspace && node build.js && ls /opt/built") == "built\nall.js\n"


def test_the_dev_profile_is_root_with_its_own_home(shared):
    assert run(shared, "id -u; echo $HOME $USER; cd; pwd") == "0\n/root root\n/root\n"
    assert shared.exec(["stat", "-c", "%U %a", "/root", "/workspace"]).text.splitlines() == [
        "root 700",
        "root 755",
    ]


@pytest.mark.promise("P08", "P26")
def test_changes_to_the_root_count_in_the_quota(box):
    before = int(run(box, "df -B1 --output=size / | tail -1"))
    assert before <= box.limits.workspace_bytes
    answer = box.exec("head -c 300M /dev/zero > /usr/big")
    assert b"No space left" in answer.stderr
    # A large write is refused while there is still room for a small one, and the file system
    # gives back what it had reserved for writes once it has written them.
    fill = "sync; dd if=/dev/zero of=/usr/rest$n bs=1k"
    assert box.exec(f"for n in 1 2 3; do {fill} && exit 0; done; false").code != 0
    assert box.exec("echo x > /workspace/x").code != 0
    run(box, "rm /usr/big /usr/rest* && echo x > /workspace/x")


@pytest.mark.promise("P08", "P26")
def test_changes_to_the_root_belong_to_one_sandbox_only(make_box, debian, box):
    run(box, "echo changed > /etc/motd; rm /usr/bin/env")
    with make_box(debian, profile="dev") as other:
        assert other.exec("cat /etc/motd").text != "changed\n"
        assert other.exec("test -x /usr/bin/env").code == 0
    assert (Path(debian.layers[0]) / "usr/bin/env").exists()


def test_files_are_read_and_written_as_root(shared):
    shared.write("/opt/mine", b"x")
    assert shared.exec(["stat", "-c", "%u:%g", "/opt/mine"]).text == "0:0\n"
    run(shared, "install -m 600 -o 33 -g 33 /dev/null /opt/theirs")
    assert shared.read("/opt/theirs") == b""


# ---- what it gains on the host


def looked_at(box) -> posture.Posture:
    """Examine a user command from outside after its loader has closed its descriptors."""
    box.start(["sleep", "71"])
    found: list[posture.Posture] = []

    def missing() -> str:
        for pid in box.host_processes():
            with contextlib.suppress(OSError):  # It has ended meanwhile.
                if Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x0071\x00":
                    found[:] = [posture.read(pid)]
                    return "" if found[0].descriptors == (0, 1, 2) else f"{found[0].descriptors}"
        return "no sleep"

    poll("a command to look at", missing)
    return found[0]


@pytest.mark.promise("P08")
def test_the_dev_profile_is_unprivileged_seen_from_the_host(box):
    seen = looked_at(box)
    host = posture.read(os.getpid())
    found = posture.deviations(
        seen, host, ids=box.host_ids, capabilities=GIVEN, writable=("/", "/run")
    )
    assert found == []
    assert int(seen.status["Uid"].split()[0]) == box.host_ids[0] != 0


def test_the_check_names_the_allowances_of_the_dev_profile(box, make_box, debian):
    """The check above can fail: without the allowances it names each of them."""
    found = posture.deviations(looked_at(box), posture.read(os.getpid()), ids=box.host_ids)
    assert len([f for f in found if f.startswith("Cap")]) == 3
    assert {"/ is writable", "/run is writable"} <= set(found)
    with make_box(debian) as hardened:
        seen = looked_at(hardened)
        assert posture.deviations(seen, posture.read(os.getpid()), ids=hardened.host_ids) == []


@pytest.mark.promise("P08")
def test_no_process_inside_is_root_on_the_host(box):
    box.start(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "sleep", "60"])
    box.exec("sleep 60 &")
    for pid in box.host_processes():
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        ids = [int(v) for line in status.splitlines() if line[:3] in ("Uid", "Gid")
               for v in line.split()[1:]]  # fmt: skip
        assert all(v in box.host_ids for v in ids), status


def test_files_of_the_dev_profile_belong_to_its_id_range(box):
    box.write("/workspace/mine", b"x")
    seen = os.stat(f"/proc/{box.host_pid}/root/workspace/mine")
    assert (seen.st_uid, seen.st_gid) == (box.host_ids[0], box.host_ids[0])


ATTEMPTS = (
    "mount -t tmpfs x /mnt",
    "mount --bind / /mnt",
    "umount /proc/sys",
    "umount /workspace",
    "mount -o remount,rw /proc/sys",
    "unshare -U true",
    "unshare -m true",
    "unshare -r true",
    "nsenter -t 1 -m true",
    "mknod /dev/sda b 8 0",
    "mknod /tmp/mem c 1 1",
    "hostname other",
    "dmesg",
    "swapon /dev/zero",
    "date -s 2000-01-01",
    "test -w /proc/sys/kernel/core_pattern",
    "test -w /proc/sys/user/max_user_namespaces",
    "test -w /proc/sysrq-trigger && test ! -c /proc/sysrq-trigger",
    "cat /proc/kcore | grep -q .",
    "cat /proc/kallsyms | grep -q .",
    "cat /proc/1/environ",
    "cat /proc/1/maps",
    "readlink /proc/1/exe",
    "readlink /proc/1/fd/3",
    "ls /proc/1/root/",
    "cat /proc/1/mem",
    "cat /proc/1/io",
    "cat /proc/1/stack",
    "cat /proc/1/syscall",
    "cat /proc/1/personality",
    "rm /run/sandkasten/runner",
    "echo x > /run/sandkasten/runner",
    "touch /dev/x",
)


@pytest.mark.promise("P08")
@pytest.mark.parametrize("command", ATTEMPTS)
def test_root_inside_cannot_run_privileged_operations(command, shared):
    assert shared.exec(["sh", "-c", command]).code != 0


def test_system_call_filters_are_those_of_the_hardened_profile(shared):
    """Nothing that package managers and compilers need is refused by the two filters."""
    status = shared.exec(["cat", "/proc/self/status"]).text
    assert "Seccomp:\t2" in status
    assert "Seccomp_filters:\t2" in status


def test_set_id_programs_and_file_capabilities_have_no_effect(box):
    run(box, "cp /usr/bin/id /usr/local/bin/suid && chmod u+s /usr/local/bin/suid")
    said = run(box, "setpriv --reuid 1234 --regid 1234 --clear-groups suid -u")
    assert said == "1234\n"


@pytest.mark.promise("P08")
def test_masks_of_proc_are_those_of_the_hardened_profile(shared, make_box, debian):
    def masked(box) -> set[str]:
        lines = box.exec(["cat", "/proc/self/mountinfo"]).text.splitlines()
        return {n.split()[4] for n in lines if n.split()[4].startswith("/proc/")}

    with make_box(debian) as hardened:
        assert masked(shared) == masked(hardened) != set()


# ---- what it cannot break


def test_the_first_process_cannot_be_ended_from_inside(box):
    answer = box.exec(
        ["sh", "-c", "for s in KILL STOP TERM INT HUP SEGV; do kill -$s 1; done; echo still"]
    )
    assert answer.text == "still\n"
    assert run(box, "echo ok") == "ok\n"


@pytest.mark.promise("P08", "P09")
@pytest.mark.parametrize("signal", few(["KILL", "STOP", "TERM"], 2))
@pytest.mark.parametrize("whom", ["$PPID", "-1"])
def test_a_command_that_attacks_its_supervisor_gets_an_answer(signal, whom, box):
    """Root may signal the supervisor of its commands: then the command is reported as lost."""
    attack = f"kill -{signal} {whom}; sleep 100"
    for command in (["sh", "-c", attack], attack):
        # It may be quicker than its supervisor's word that it has begun: then that is the answer.
        with contextlib.suppress(InternalError):
            assert box.exec(command, timeout_s=2, grace_s=0.5).code != 0
    answer = box.exec("echo ok")
    assert (answer.text, answer.code) == ("ok\n", 0)


def test_a_stopped_supervisor_does_not_hold_up_the_next_command(box):
    run(box, "cd /tmp; sleep 100 & echo $PPID > /tmp/supervisor")
    box.exec(["sh", "-c", "kill -STOP $(cat /tmp/supervisor)"])
    answer = box.exec("echo $PWD")
    assert (answer.text, answer.reset) == ("/tmp\n", True)


@pytest.mark.promise("P08", "P09")
@pytest.mark.parametrize(
    "attack",
    few(
        [
            "rm -rf /run/sandkasten/state",
            "rm -rf /run/sandkasten/state*/*",
            "mv /run/sandkasten/state /run/sandkasten/other",
            "rm -rf /run/sandkasten/state; ln -s /etc /run/sandkasten/state",
            "chown -R 0:0 /run/sandkasten/state; chmod -R 700 /run/sandkasten/state",
            "cd /run/sandkasten/state*/shell-*/; rm cmd; echo 'true' > cmd",
            "cd /run/sandkasten/state*/shell-*/; rm cmd; mkfifo cmd",
            "cd /run/sandkasten/state*/shell-*/; rm -f out; ln -s /etc/passwd out",
            "cd /run/sandkasten/state*/shell-*/; rm -f command; mkdir command",
            "cd /run/sandkasten/state*/shell-*/; touch command",
        ],
        3,
    ),
)
def test_tampering_with_the_shells_files_never_invents_a_status(attack, box):
    """The shell continues, or its replacement is reported; never a hang or a false success."""
    run(box, "export kept=1")
    box.exec(["sh", "-c", attack])
    for _ in range(2):
        for command, code in (("exit_with() { return 3; }; exit_with", 3), ("false", 1)):
            try:
                answer = box.exec(command)
            except SandkastenError:
                continue
            assert answer.code == code or (answer.code is None and answer.reset), attack
    assert run(box, "echo works") == "works\n"


def test_a_full_runner_directory_stops_no_command(box):
    box.exec(["sh", "-c", "head -c 20M /dev/zero > /run/sandkasten/x"])
    assert run(box, "echo full") == "full\n"
    assert box.exec(["rm", "/run/sandkasten/x"]).code == 0
    assert run(box, "echo ok") == "ok\n"


def test_a_runner_without_free_descriptors_answers_or_is_lost(make_box, debian):
    """Root can become the runner's id and lower its limits; only its own session is affected."""
    with make_box(debian, profile="dev") as box:
        box.exec(
            ["setpriv", "--reuid", "999", "--regid", "999", "--clear-groups",
             "prlimit", "--pid", "1", "--nofile=4:4"]
        )  # fmt: skip
        with pytest.raises(SandkastenError):
            box.exec(["echo", "ok"])


def test_the_host_image_has_no_dev_profile(make_box):
    with pytest.raises(SandkastenError, match="profile dev requires an image"):
        make_box(Image("host"), profile="dev").__enter__()
