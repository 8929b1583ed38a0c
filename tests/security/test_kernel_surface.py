"""One probe per refused system call, socket family, namespace flag and terminal request."""

from __future__ import annotations

import errno
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten_contract.shared_sandbox_cases import each
from tests.security.harness import OWN_KERNEL, PYTHON, ROOT_INSIDE

if TYPE_CHECKING:
    from tests.security.harness import Box

pytestmark = pytest.mark.promise("P02")

REFUSED = """
    ptrace process_vm_readv process_vm_writev pidfd_getfd io_uring_setup io_uring_enter
    io_uring_register bpf perf_event_open userfaultfd add_key request_key keyctl mount umount2
    fsopen fsconfig fsmount fspick open_tree move_mount mount_setattr setns unshare unshare_user
    pivot_root chroot open_by_handle_at name_to_handle_at fanotify_init fanotify_mark kexec_load
    kexec_file_load init_module finit_module delete_module syslog settimeofday clock_settime
    clock_adjtime adjtimex reboot swapon swapoff acct quotactl quotactl_fd sethostname
    setdomainname kcmp lookup_dcookie mbind set_mempolicy get_mempolicy set_mempolicy_home_node
    migrate_pages move_pages memfd_secret process_madvise vhangup nfsservctl iopl ioperm
    modify_ldt uselib ustat _sysctl
    """.split()  # noqa: SIM905  (names read better than seventy quoted ones)
AS_AN_OLDER_KERNEL = [
    "clone3",
    "statmount",
    "listmount",
    "lsm_get_self_attr",
    "open_tree_attr",
    "beyond_every_table",
    "personality_no_randomize",
]
NAMESPACES = ["time", "mount", "cgroup", "uts", "ipc", "user", "pid", "net"]
TERMINAL_TRICKS = ["TIOCSTI", "TIOCSTI+high", "TIOCLINUX", "TIOCLINUX+high"]
ALLOWED_FAMILIES = {1: "UNIX", 2: "INET", 10: "INET6", 16: "NETLINK"}
OTHER_FAMILIES = [f for f in range(1, 64) if f not in ALLOWED_FAMILIES]


@pytest.fixture(scope="module")
def seen(shared_box: Box) -> dict[str, Any]:
    asked = [("plain", name) for name in (*REFUSED, *AS_AN_OLDER_KERNEL, "getpid")]
    asked.append(("plain", "personality_query"))
    asked += [("clone", name) for name in (*NAMESPACES, "nothing")]
    asked += [("ioctl", name) for name in (*TERMINAL_TRICKS, "TIOCGWINSZ")]
    asked += [("family", str(f)) for f in (*OTHER_FAMILIES, *ALLOWED_FAMILIES)]
    asked += [("family", f"{f}+high") for f in (*OTHER_FAMILIES, *ALLOWED_FAMILIES)]
    asked += [("abi", name) for name in ("x32", "x32 getpid", "i386 unshare", "i386 getpid")]
    found: dict[str, Any] = shared_box.probe("syscalls", json.dumps(asked), timeout_s=100)
    return found


@pytest.mark.needs_program("python3")
@pytest.mark.not_on("gvisor", reason=OWN_KERNEL)
@each("name", REFUSED)
def test_a_dangerous_call_is_refused_without_killing(name, seen):
    answer = seen[f"plain:{name}"]
    assert answer in ({"result": -1, "errno": errno.EPERM}, {"absent": True})


@pytest.mark.needs_program("python3")
@pytest.mark.not_on("gvisor", reason=OWN_KERNEL)
@each("name", AS_AN_OLDER_KERNEL)
def test_an_unlisted_system_call_fails_with_enosys(name, seen):
    assert seen[f"plain:{name}"] == {"result": -1, "errno": errno.ENOSYS}


@pytest.mark.needs_program("python3")
@pytest.mark.not_on("gvisor", reason=OWN_KERNEL)
def test_the_probe_can_make_an_allowed_call(seen):
    assert seen["plain:getpid"]["result"] > 0
    assert seen["plain:personality_query"]["result"] >= 0


@pytest.mark.needs_program("python3")
@pytest.mark.not_on("gvisor", reason=OWN_KERNEL)
@each("name", NAMESPACES)
def test_clone_cannot_create_a_namespace(name, seen):
    assert seen[f"clone:{name}"] == {"result": -1, "errno": errno.EPERM}


@pytest.mark.needs_program("python3")
@pytest.mark.not_on("gvisor", reason=OWN_KERNEL)
def test_clone_without_a_namespace_works(seen):
    assert seen["clone:nothing"]["result"] > 0


@pytest.mark.needs_program("python3")
@pytest.mark.not_on("gvisor", reason=OWN_KERNEL)
@each("name", TERMINAL_TRICKS)
def test_terminal_injection_is_refused_whatever_the_high_bits(name, seen):
    assert seen[f"ioctl:{name}"] == {"result": -1, "errno": errno.EPERM}


@pytest.mark.needs_program("python3")
@pytest.mark.not_on("gvisor", reason=OWN_KERNEL)
def test_an_ordinary_terminal_request_works(seen):
    assert seen["ioctl:TIOCGWINSZ"] == {"result": 0, "errno": 0}


@pytest.mark.needs_program("python3")
@pytest.mark.not_on("gvisor", reason=OWN_KERNEL)
@each("family", OTHER_FAMILIES)
@each("high", ["", "+high"], ids=["plain", "high_bits"])
def test_a_socket_family_beyond_the_four_is_refused(family, high, seen):
    assert set(seen[f"family:{family}{high}"].values()) == {errno.EPERM}


@pytest.mark.needs_program("python3")
@pytest.mark.not_on("gvisor", reason=OWN_KERNEL)
@each("family", ALLOWED_FAMILIES, ids=ALLOWED_FAMILIES.get)
def test_a_socket_family_with_high_bits_set_is_refused(family, seen):
    """The kernel truncates the family to 32 bits; the filter must do the same."""
    assert set(seen[f"family:{family}+high"].values()) == {errno.EPERM}


@pytest.mark.needs_program("python3")
@pytest.mark.not_on("gvisor", reason=OWN_KERNEL)
@each("family", ALLOWED_FAMILIES, ids=ALLOWED_FAMILIES.get)
def test_the_four_families_work_and_raw_sockets_do_not(family, seen):
    answer = seen[f"family:{family}"]
    assert answer["2"] == 0
    if family in (2, 10):
        assert answer["3"] in (errno.EPERM, errno.EPROTONOSUPPORT)


@pytest.mark.needs_program("python3")
@pytest.mark.not_on("gvisor", reason=OWN_KERNEL)
@each("name", ["x32", "x32 getpid", "i386 unshare", "i386 getpid"])
def test_other_system_call_abis_of_x86_64_are_refused(name, seen):
    answer = seen[f"abi:{name}"]
    refused = answer.get("errno") in (errno.EPERM, errno.ENOSYS)
    assert (
        answer == {"absent": True}
        or refused
        or answer.get("signal")
        in (
            signal.SIGSYS,
            signal.SIGSEGV,
        )
    )


# ---- what must go on working under that filter


@pytest.mark.needs_program("python3")
def test_python_threads_work_without_clone3(shared_box):
    code = """
import json, threading
found = []
threads = [threading.Thread(target=found.append, args=(n,)) for n in range(20)]
[t.start() for t in threads]; [t.join() for t in threads]
print(json.dumps(sorted(found)))
"""
    assert shared_box.python(code) == list(range(20))


@pytest.mark.needs_program("python3")
def test_asyncio_subprocesses_work(shared_box):
    code = """
import asyncio, json
async def main():
    made = [await asyncio.create_subprocess_exec("echo", str(n), stdout=-1) for n in range(5)]
    return [(await p.communicate())[0].decode().strip() for p in made]
print(json.dumps(asyncio.run(main())))
"""
    assert shared_box.python(code) == ["0", "1", "2", "3", "4"]


@pytest.mark.needs_program("python3")
def test_multiprocessing_works(shared_box):
    code = """
import json, multiprocessing
with multiprocessing.get_context("fork").Pool(3) as pool:
    print(json.dumps(pool.map(abs, [-1, -2, 3])))
"""
    assert shared_box.python(code) == [1, 2, 3]


@pytest.mark.needs_program("node")
def test_node_works_without_io_uring(shared_box):
    code = """
const fs = require('fs/promises'), {Worker} = require('worker_threads');
(async () => {
  await fs.writeFile('/tmp/n', 'x'.repeat(1000));
  const size = (await fs.stat('/tmp/n')).size;
  const said = await new Promise(done => new Worker(
    "require('worker_threads').parentPort.postMessage(6*7)", {eval: true}).on('message', done));
  const out = require('child_process').execSync('echo child').toString();
  console.log(size, said, out.trim());
})();
"""
    answer = shared_box.exec(["/usr/bin/node", "-e", code])
    assert (answer.text, answer.code) == ("1000 42 child\n", 0)


@pytest.mark.needs_program("bash")
def test_bash_pipelines_and_substitutions_work(shared_box):
    answer = shared_box.exec(
        ["bash", "-c", "diff <(seq 3 | tac) <(printf '3\\n2\\n1\\n') && echo same"]
    )
    assert (answer.text, answer.code) == ("same\n", 0)


# ---- the tools an attacker would reach for


TOOLS = [
    ["unshare", "-U", "true"],
    ["unshare", "-Ur", "--mount", "true"],
    ["unshare", "-n", "true"],
    ["nsenter", "-t", "1", "-a", "true"],
    ["nsenter", "-t", "1", "-m", "true"],
    ["mount", "-t", "tmpfs", "x", "/tmp"],
    ["mount", "--bind", "/usr", "/tmp"],
    ["umount", "/proc"],
    ["umount", "-l", "/workspace"],
    ["chroot", "/tmp", "true"],
    ["mknod", "/tmp/null", "c", "1", "3"],
    ["mknod", "/tmp/loop", "b", "7", "0"],
    ["dmesg"],
    ["date", "-s", "@0"],
    ["hostname", "other"],
    ["swapoff", "/dev/null"],
    ["losetup", "-f"],
    ["bwrap", "--ro-bind", "/", "/", "true"],
    ["chown", "4242:4242", "/workspace"],
    ["nice", "-n", "-5", "true"],
    ["chrt", "-f", "1", "true"],
]


@pytest.mark.not_on("gvisor", reason=OWN_KERNEL)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            words,
            marks=[
                pytest.mark.needs_program(words[0]),
                *([pytest.mark.not_on("dev", reason=ROOT_INSIDE)] if words[0] == "chown" else []),
            ],
            id=" ".join(words),
        )
        for words in TOOLS
    ],
)
def test_an_attack_tool_fails(command, shared_box):
    assert shared_box.exec(["which", command[0]]).code == 0
    answer = shared_box.exec(command)
    # These say what they could not do, and go on.
    refused = {"nice": b"set niceness", "date": b"set date"}.get(command[0])
    if refused is not None:
        assert refused in answer.stderr
    else:
        assert answer.code not in (0, None), answer


def test_a_fifo_can_still_be_made(shared_box):
    assert shared_box.exec(["mkfifo", "/tmp/innocent"]).code == 0


@pytest.mark.needs_program("python3")
def test_a_set_id_program_does_not_change_the_identity(shared_box):
    """A copy of `id` with both bits set runs as the user, and so do the host's own programs."""
    code = """
import json, os, shutil, subprocess
shutil.copy("/usr/bin/id", "/workspace/id")
os.chmod("/workspace/id", 0o6755)
kept = os.stat("/workspace/id").st_mode & 0o6000
said = subprocess.run(["/workspace/id", "-u"], capture_output=True, text=True).stdout.strip()
flags = os.statvfs("/usr").f_flag, os.statvfs("/workspace").f_flag
print(json.dumps([kept, said, [bool(f & os.ST_NOSUID) for f in flags]]))
"""
    kept, said, nosuid = shared_box.python(code)
    assert kept == 0o6000
    assert said == str(shared_box.uid)
    # gVisor does not tell how something is mounted, and docker lets nobody say it: there only what
    # we mount ourselves, where sizes are exact, is as everywhere else.
    usual = not (shared_box.gvisor or shared_box.container)
    assert nosuid == [usual, usual or shared_box.ground.where == "bind"]
    for words in (["su", "-c", "id"], ["sudo", "-n", "id"], ["pkexec", "id"]):
        if not shared_box.dev and shared_box.exec(["which", words[0]]).code == 0:
            answer = shared_box.exec(words)
            assert (answer.code == 0, b"uid=0" in answer.stdout) == (False, False), words


_SHOWN = {
    # What gVisor shows of any process; the runner has nothing to hide there.
    "gvisor": {"auxv", "environ", "fd", "fdinfo", "maps", "ns/mnt"},
    # What root sees of others; none of it opens anything, and the harm is to oneself.
    "dev": {"fd", "io", "personality", "stack", "syscall", "write oom"},
}


@pytest.mark.needs_program("python3")
def test_user_code_cannot_touch_the_first_process(shared_box):
    code = """
import ctypes, errno, json, os, resource, signal
seen = {}
def attempt(name, do):
    try:
        do()
        seen[name] = "done"
    except OSError as exc:
        seen[name] = errno.errorcode[exc.errno]
attempt("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(1), signal.SIGKILL))
for path in ("mem", "exe", "environ", "root", "cwd", "fd", "maps", "ns/mnt", "auxv", "stack",
             "syscall", "io", "map_files", "fdinfo", "pagemap", "timers", "personality"):
    attempt(path, lambda: os.readlink(f"/proc/1/{path}") if path in ("exe", "root", "cwd", "ns/mnt")
            else os.listdir(f"/proc/1/{path}") if path in ("fd", "map_files", "fdinfo")
            else os.close(os.open(f"/proc/1/{path}", os.O_RDONLY)))
attempt("write mem", lambda: os.close(os.open("/proc/1/mem", os.O_RDWR)))
attempt("write exe", lambda: os.close(os.open("/proc/1/exe", os.O_WRONLY)))
attempt("write oom", lambda: os.close(os.open("/proc/1/oom_score_adj", os.O_WRONLY)))
attempt("root", lambda: os.listdir("/proc/1/root/"))
for fd in range(64):
    for how in (os.O_RDONLY, os.O_WRONLY):
        try:
            opened = os.open(f"/proc/1/fd/{fd}", how | os.O_NONBLOCK)
        except OSError:
            continue
        # The user's own end of a pipe, or the null device, is nothing of the runner's.
        found = os.fstat(opened)
        if found.st_uid != os.getuid() and found.st_rdev != os.makedev(1, 3):
            seen[f"descriptor {fd} {how}"] = "done"
        os.close(opened)
print(json.dumps(seen))
"""
    seen = shared_box.python(code)
    # Signals from inside never reach a first process that does not want them.
    seen.pop("pidfd")
    allowed = {name for name, how in seen.items() if how not in ("EACCES", "EPERM", "ENOENT")}
    assert allowed <= _SHOWN.get(shared_box.ground.profile, set()) | _SHOWN.get(
        shared_box.ground.backend, set()
    )
    shared_box.answers()


@pytest.mark.needs_program("python3")
def test_the_probe_can_read_its_own_process(shared_box):
    code = "import json, os; print(json.dumps(os.readlink('/proc/self/exe')))"
    assert "python" in shared_box.python(code)


@pytest.mark.needs_program("python3")
@pytest.mark.not_on("gvisor", reason=OWN_KERNEL)
def test_a_seccomp_listener_does_not_reach_beyond_its_own_children(box):
    """An additional filter can only be stricter, and only for its own process."""
    code = """
import ctypes, json, struct
libc = ctypes.CDLL(None, use_errno=True)
# A filter that allows everything must not undo the one above it.
program = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
keep = ctypes.create_string_buffer(program)
fprog = struct.pack("HxxxxxxQ", 1, ctypes.addressof(keep))
hold = ctypes.create_string_buffer(fprog)
set_filter = libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(hold)), 0, 0)
libc.unshare.restype = ctypes.c_int
ctypes.set_errno(0)
print(json.dumps([set_filter, libc.unshare(0x10000000), ctypes.get_errno()]))
"""
    assert box.python(code) == [0, -1, errno.EPERM]


def test_python_in_the_sandbox_is_the_python_of_the_host():
    assert os.path.exists(PYTHON)
