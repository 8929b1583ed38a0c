"""One node: a containerd and a kubelet with a network, directories and a cgroup of their own.

Both nodes share the mounts of one `Machine`. Each has a network namespace, and a link to that of
the machine, which forwards between nodes and to the host. A node's address is that of its bridge,
the gateway of its Pods.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten_runtime.linux.confinement import seccomp_bpf, seccomp_oci
from tests.cluster import programs
from tests.hostwatch import loopwatch
from tests.patience import FAR_TOO_LATE_S

if TYPE_CHECKING:
    from tests.engines.machine import Machine

PAUSE = "localhost/sandkasten/pause:1"
SERVICES = "10.96.0.0/24"
# Our system-call filter, as an operator puts it on the nodes.
SECCOMP_PROFILE = "sandkasten.json"
_CGROUPS = Path("/sys/fs/cgroup")
_BRIDGE = "pods"
# The last thing that containerd says before it answers kubelets.
_SERVES_KUBELETS = b"Start streaming server"
_BRIDGED = "/proc/sys/net/bridge/bridge-nf-call-iptables"
_NETWORK = """
set -e
node=$1 address=$2 subnet=$3 link=$4 ethernet=$5
ip netns add "$node"
ip link add "$node" type veth peer name eth0 netns "$node"
ip addr add "$link.1/30" dev "$node"
ip link set "$node" up
ip route add "$subnet" via "$link.2"
exec nsenter --net="/run/netns/$node" sh -ec '
    ip link set lo up
    ip link add pods address "$4" type bridge
    ip addr add "$1/${2#*/}" dev pods
    ip link set pods up
    ip addr add "$3.2/30" dev eth0
    ip link set eth0 up
    ip route add default via "$3.1" src "$1"
    echo 1 >/proc/sys/net/ipv4/ip_forward
' sh "$address" "$subnet" "$link" "$ethernet"
"""
# Without an address of its own, a bridge takes the lowest one of its ports. When that port leaves,
# Pods send to an address that is gone, until the node sends something to them.
_BRIDGE_ADDRESS = "02:00:00:00:00:01"
# Images stay although no Pod uses them yet, and a full disk of the host evicts no Pod.
_KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    "failCgroupV1": False,
    "enforceNodeAllocatable": [],
    "makeIPTablesUtilChains": False,
    "failSwapOn": False,
    "healthzPort": 0,
    # Both need CAP_SYS_RESOURCE, which a container or a small virtual machine may not have.
    "oomScoreAdj": 0,
    "evictionHard": {"memory.available": "100Mi"},
    "imageGCHighThresholdPercent": 100,
    "imageGCLowThresholdPercent": 99,
    "resolvConf": "",
    # How often it measures what Pods have written; it evicts those with too much every 10 s.
    "volumeStatsAggPeriod": "5s",
    "nodeStatusUpdateFrequency": "2s",
    "nodeLeaseDurationSeconds": 12,
    "shutdownGracePeriod": "0s",
    "maxPods": 120,
    # The default of a sandbox, and what is beside it in its Pod.
    "podPidsLimit": 288,
}


@dataclass
class Node:
    number: int
    machine: Machine
    address: str
    """Of the node, and the gateway of its Pods."""
    subnet: str
    """The addresses of its Pods, as 198.19.0.0/25."""
    certificates: Path
    _runtime: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _kubelet: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _said_before: int = field(default=0, repr=False)
    """The size of containerd's log when this one was started."""
    _policies: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def folder(self) -> Path:
        return self.machine.folder / self.name

    @property
    def socket(self) -> Path:
        return self.folder / "containerd.sock"

    @property
    def kubelet_folder(self) -> Path:
        """Return the directory of volumes and seccomp profiles."""
        return self.folder / "kubelet"

    @property
    def cgroup(self) -> str:
        return f"{self.machine.cgroup}/{self.name}"

    # ---- life

    @loopwatch.of_the_test
    def prepare(self) -> None:
        """Write the configuration, and create the network and the cgroups."""
        self.kubelet_folder.mkdir(parents=True)
        (self.folder / "net.d").mkdir()
        profiles = self.kubelet_folder / "seccomp"
        profiles.mkdir()
        profile = seccomp_oci.profile(seccomp_bpf.machine())
        (profiles / SECCOMP_PROFILE).write_text(json.dumps(profile))
        (self.folder / "containerd.toml").write_text(self._containerd_config())
        (self.folder / "net.d" / "pods.conflist").write_text(json.dumps(self._cni_config()))
        (self.folder / "kubelet.json").write_text(json.dumps(self._kubelet_config()))
        link = f"169.254.{self.number}"
        words = (self.name, self.address, self.subnet, link, _BRIDGE_ADDRESS)
        self.machine.run("sh", "-c", _NETWORK, "sh", *words)
        # One tree (version 2), or one for each controller.
        whole = (_CGROUPS / "cgroup.procs").exists()
        for hierarchy in (_CGROUPS,) if whole else _CGROUPS.iterdir():
            _make_cgroup(hierarchy, self.cgroup)

    def start_runtime(self) -> None:
        # It finds its shim in PATH.
        path = f"{programs.containerd().parent}:{os.environ['PATH']}"
        words = [str(programs.containerd()), "--config", str(self.folder / "containerd.toml")]
        log, scratch = self._runtime_log, self.folder / "tmp"
        scratch.mkdir(exist_ok=True)
        self._said_before = log.stat().st_size if log.exists() else 0
        self._runtime = self.machine.start(
            self._entering(words), log, PATH=path, TMPDIR=str(scratch)
        )

    def start_kubelet(self) -> None:
        words = [
            programs.server("kubelet"),
            *("--config", str(self.folder / "kubelet.json")),
            *("--kubeconfig", str(self.machine.folder / f"{self.name}.kubeconfig")),
            *("--hostname-override", self.name, "--node-ip", self.address),
            *("--root-dir", str(self.kubelet_folder), "--cert-dir", str(self.folder / "pki")),
        ]
        self._kubelet = self.machine.start(self._entering(words), self.folder / "kubelet.log")

    def start(self, words: list[str], log: str) -> subprocess.Popen[bytes]:
        """Start another program in the network of the node."""
        return self.machine.start(self._entering(words), self.folder / log)

    def run(self, *words: str) -> str:
        """Run a program in the network of the node to its end; return its output."""
        return self.machine.run(*self._entering([*words]))

    def start_policy_controller(self, kubeconfig: Path) -> None:
        """Start what enforces every NetworkPolicy for the Pods of this node."""
        # Between Pods of one node too, whose packets only pass the bridge.
        self.run("sh", "-c", f"echo 1 >{_BRIDGED}")
        words = [str(programs.policy_controller()), str(kubeconfig), self.name, SERVICES]
        self._policies = self.machine.start(
            self._entering(words),
            self.folder / "policy-controller.log",
            PATH=f"{programs.ipset().parent}:{os.environ['PATH']}",
            LD_LIBRARY_PATH=str(programs.libraries()),
        )

    @loopwatch.of_the_test
    def kill_policy_controller(self) -> None:
        """Simulate its crash: the rules for Pods that it has seen stay, new Pods get none."""
        _kill(self._policies)
        self._policies = None

    @loopwatch.of_the_test
    def stop_policy_controller(self) -> None:
        """End it, and remove its rules."""
        self.kill_policy_controller()
        self.run("iptables", "--flush")
        self.run("iptables", "--delete-chain")

    def _entering(self, words: list[str]) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.name}", "--", *words]

    @loopwatch.of_the_test
    def cut_off(self) -> None:
        """Simulate the failure of its network: everything on it continues."""
        self.machine.run("ip", "link", "set", self.name, "down")

    @loopwatch.of_the_test
    def reconnect(self) -> None:
        self.machine.run("ip", "link", "set", self.name, "up")
        link = f"169.254.{self.number}.2"
        self.machine.run("ip", "route", "replace", self.subnet, "via", link)

    @loopwatch.of_the_test
    def kill_kubelet(self) -> None:
        """Simulate a crash of the kubelet: its containers continue."""
        _kill(self._kubelet)

    @loopwatch.of_the_test
    def kill_runtime(self) -> None:
        """Simulate a crash of containerd: its containers continue."""
        _kill(self._runtime)

    @loopwatch.of_the_test
    def kill(self) -> None:
        """Simulate the loss of the node: the kubelet, containerd and every container end."""
        self.kill_kubelet()
        self.kill_runtime()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Wait for its programs, which were ended together with the machine."""
        for process in (self._runtime, self._kubelet, self._policies):
            if process is not None:
                process.wait()

    def processes(self) -> list[int]:
        """Return the processes of its containers, by the pids of the host."""
        top = _CGROUPS / "pids" / self.cgroup
        if not top.is_dir():
            top = _CGROUPS / self.cgroup
        found: list[int] = []
        for group, _, _ in os.walk(top):
            with contextlib.suppress(OSError):
                found += map(int, Path(group, "cgroup.procs").read_text().split())
        return found

    def died(self) -> str:
        """Return the name of a program of the node that has ended."""
        for name, process in (("containerd", self._runtime), ("kubelet", self._kubelet)):
            if process is not None and process.poll() is not None:
                return f"{name} of {self.name}"
        return ""

    def log(self, program: str) -> str:
        return (self.folder / f"{program}.log").read_text(errors="replace")

    # ---- images

    @loopwatch.of_the_test
    def is_up(self) -> bool:
        """Return whether containerd answers, also to a kubelet: one that is started before ends."""
        if _ctr(self.socket, "version").returncode != 0:
            return False
        return _SERVES_KUBELETS in self._runtime_log.read_bytes()[self._said_before :]

    @property
    def _runtime_log(self) -> Path:
        return self.folder / "containerd.log"

    @loopwatch.of_the_test
    def load(self, archive: Path) -> None:
        """Import the images of an archive that `docker save` or skopeo wrote."""
        import_archive(self.socket, archive)

    # ---- configuration

    def _containerd_config(self) -> str:
        cri = 'plugins."io.containerd.grpc.v1.cri"'
        return f"""
version = 2
root = "{self.folder}/data"
state = "{self.folder}/state"
disabled_plugins = [
    "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp",
    "io.containerd.internal.v1.tracing", "io.containerd.internal.v1.opt",
]
[grpc]
address = "{self.socket}"
[ttrpc]
address = "{self.socket}.ttrpc"
[{cri}]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
disable_apparmor = true
[{cri}.cni]
bin_dir = "{programs.CNI}"
conf_dir = "{self.folder}/net.d"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
BinaryName = "{programs.runc()}"
Root = "{self.folder}/runc"
SystemdCgroup = false
"""

    def _cni_config(self) -> dict[str, object]:
        bridge = {
            "type": "bridge",
            "bridge": _BRIDGE,
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "dataDir": str(self.folder / "addresses"),
                "ranges": [[{"subnet": self.subnet, "gateway": self.address}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}

    def _kubelet_config(self) -> dict[str, object]:
        known = {"x509": {"clientCAFile": str(self.certificates / "ca.pem")}}
        return {
            **_KUBELET,
            "authentication": {**_KUBELET["authentication"], **known},  # type: ignore[dict-item]
            "address": self.address,
            "cgroupRoot": f"/{self.cgroup}",
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "podLogsDir": str(self.folder / "logs"),
            "volumePluginDir": str(self.folder / "plugins"),
        }


def import_archive(socket: Path, archive: Path) -> None:
    """Import the images of an archive into the containerd of a node."""
    # An image of a real program is ten thousand files.
    done = _ctr(socket, "images", "import", str(archive), timeout_s=10 * FAR_TOO_LATE_S)
    if done.returncode != 0:
        raise RuntimeError(f"{socket} does not import {archive}: {done.stderr[-2000:]}")


def _ctr(
    socket: Path, *words: str, timeout_s: float = FAR_TOO_LATE_S
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(programs.ctr()), "--address", str(socket), "--namespace", "k8s.io", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


def _make_cgroup(hierarchy: Path, name: str) -> None:
    at = hierarchy
    for part in Path(name).parts:
        # In version 1, a new cpuset has no processors; in version 2, a new group no controllers.
        above, at = at, at / part
        at.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (above / setting).exists() and not (above / "cgroup.subtree_control").exists():
                (at / setting).write_text((above / setting).read_text())
        if (above / "cgroup.subtree_control").exists():
            controllers = (above / "cgroup.controllers").read_text().split()
            with contextlib.suppress(OSError):
                (above / "cgroup.subtree_control").write_text(
                    " ".join(f"+{one}" for one in controllers)
                )


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        process.wait()
