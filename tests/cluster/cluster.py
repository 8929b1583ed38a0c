"""A Kubernetes of two nodes, in the namespaces of one `Machine`.

`with Cluster() as cluster:` returns when both nodes are ready. The API server is reached at the
machine's address, Pods and nodes at addresses to which this host has a route. Everything is below
one folder, in one cgroup and in namespaces that end with it. There is no kube-proxy and no DNS:
a Service has an address that nothing serves. Needs root and `scripts/cluster_build.sh`.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import secrets
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests import imagekit
from tests.cluster import programs
from tests.cluster.kube_api import ApiError, KubeApi, is_ready, wait_for
from tests.cluster.node import PAUSE, SERVICES, Node
from tests.engines import certificates
from tests.engines.machine import Machine
from tests.hostwatch import loopwatch
from tests.patience import FAR_TOO_LATE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BUSYBOX = "localhost/sandkasten/busybox:1"
PORT = 6443
# The half of the addresses for measurements of networks that machines do not use.
POD_NETWORK = "198.19"
# The kubelet sets these on the host, unless it finds them set.
_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
# Other directories than /etc, /opt and /run in which the kubelet and network plugins write.
_PRIVATE = """
set -e
folder=$1
for at in lib log; do
    mkdir -p "$folder/over/$at" "$folder/over/$at.work"
    mount -t overlay \
        -o "lowerdir=/var/$at,upperdir=$folder/over/$at,workdir=$folder/over/$at.work" \
        private "/var/$at"
done
for seen in "$folder"/sysctls/*; do
    mount --bind "$seen" "/proc/sys/$(basename "$seen" | tr + /)"
done
echo 1 >/proc/sys/net/ipv4/ip_forward
"""


class Cluster:
    """`nodes`: a list of two; `api`: a client with every right; `kubeconfig`: a file for others."""

    def __init__(self, folder: Path | None = None) -> None:
        self.machine = Machine(folder, network=True)
        self.nodes: list[Node] = []
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._tokens: dict[str, str] = {}

    # ---- life

    @loopwatch.of_the_test
    def __enter__(self) -> Cluster:
        why = programs.missing()
        if why:
            raise RuntimeError(why)
        self.machine.__enter__()
        try:
            self._prepare()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # All of it at once: nothing of a machine that is thrown away needs to end in good order.
        self.machine.__exit__()
        for process in self._servers.values():
            process.wait()
        for node in self.nodes:
            node.reap()

    def _prepare(self) -> None:
        certificates.make(self.certificates, self.machine.address)
        (self.folder / "sysctls").mkdir()
        for name, value in _SYSCTLS.items():
            (self.folder / "sysctls" / name.replace("/", "+")).write_text(f"{value}\n")
        self.machine.run("sh", "-c", _PRIVATE, "sh", str(self.folder))
        net = self._route_to_pods()
        for number, first in ((1, 0), (2, 128)):
            node = Node(
                number,
                self.machine,
                f"{net}.{first + 1}",
                f"{net}.{first}/25",
                self.certificates,
            )
            node.prepare()
            self.nodes.append(node)
        self._write_credentials()

    def _route_to_pods(self) -> str:
        """Give the host a route to a free network of Pods; return its first three numbers."""
        for _ in range(50):
            net = f"{POD_NETWORK}.{secrets.randbelow(256)}"
            with contextlib.suppress(subprocess.CalledProcessError):
                subprocess.run(
                    [
                        *("ip", "route", "add", f"{net}.0/24"),
                        *("via", self.machine.address, "dev", self.machine.link),
                    ],
                    check=True,
                    capture_output=True,
                )
                return net
        raise RuntimeError(f"this host has a route to every network of {POD_NETWORK}.0.0/16")

    def _write_credentials(self) -> None:
        users = {
            "admin": ("admin", "system:masters"),
            "controller-manager": ("system:kube-controller-manager", ""),
            "scheduler": ("system:kube-scheduler", ""),
            **{one.name: (f"system:node:{one.name}", "system:nodes") for one in self.nodes},
        }
        lines = []
        for name, (user, group) in users.items():
            self._tokens[name] = secrets.token_hex(16)
            lines.append(f'{self._tokens[name]},{user},{name},"{group}"\n')
            self.write_kubeconfig(self.folder / f"{name}.kubeconfig", self._tokens[name])
        (self.folder / "tokens.csv").write_text("".join(lines))

    def write_kubeconfig(self, path: Path, token: str) -> None:
        """Write a file for kubectl and other clients; JSON is YAML too."""
        ca = base64.b64encode((self.certificates / "ca.pem").read_bytes()).decode()
        cluster = {"server": self.server, "certificate-authority-data": ca}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(content))
        path.chmod(0o600)

    def _start(self) -> None:
        for node in self.nodes:
            node.start_runtime()
        self.start_server("etcd")
        self.start_server("kube-apiserver")
        with ThreadPoolExecutor() as beside:
            stocked = [beside.submit(self._stock, node) for node in self.nodes]
            self._wait(self._answers, "the API server does not answer")
            self.start_server("kube-controller-manager")
            self.start_server("kube-scheduler")
            for one in stocked:
                one.result()
        for node in self.nodes:
            node.start_kubelet()
        self._wait(self._is_ready, "the nodes are not ready")

    def _stock(self, node: Node) -> None:
        self._wait(node.is_up, f"containerd of {node.name} does not answer")
        for archive in (_pause_archive(), _busybox_archive()):
            node.load(archive)

    def start_server(self, name: str) -> None:
        """Start etcd or a program of the control plane, also after it was killed."""
        self._servers[name] = self.machine.start(
            self._command(name), self.folder / f"{name}.log", TMPDIR=str(self.folder)
        )

    @loopwatch.of_the_test
    def kill_server(self, name: str) -> None:
        """Simulate a crash of etcd or of a program of the control plane."""
        self._servers[name].kill()
        self._servers[name].wait()

    @loopwatch.of_the_test
    def wait_until_ready(self) -> None:
        """Wait until the API server answers and both nodes are ready."""
        self._wait(self._is_ready, "the cluster is not ready")

    def _wait(self, good: Callable[[], bool], why: str) -> None:
        wait_for(
            lambda: (good(), self._died()),
            lambda seen: seen[0] or bool(seen[1]),
            lambda _: f"{why}; logs are in {self._kept_logs()}",
            FAR_TOO_LATE_S,
        )
        if died := self._died():
            raise RuntimeError(f"{died} has ended; logs are in {self._kept_logs()}")

    def _died(self) -> str:
        ended = [name for name, one in self._servers.items() if one.poll() is not None]
        return "".join(ended[:1]) or next((d for one in self.nodes if (d := one.died())), "")

    def _kept_logs(self) -> Path:
        """Copy all logs to where they stay after the end of the cluster."""
        kept = programs.PLACE / "logs"
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        for log in (*self.folder.glob("*.log"), *self.folder.glob("node-*/*.log")):
            shutil.copyfile(log, kept / "-".join(log.relative_to(self.folder).parts))
        return kept

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException, ApiError):
            return bool(self.api.ask("GET", "/readyz", raw=True) == b"ok")
        return False

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException, ApiError):
            # Without it the API server accepts no Pod.
            self.api.ask("GET", "/api/v1/namespaces/default/serviceaccounts/default")
            return sum(map(is_ready, self.api.nodes())) == len(self.nodes)
        return False

    # ---- where it is

    @property
    def folder(self) -> Path:
        return self.machine.folder

    @property
    def certificates(self) -> Path:
        return self.folder / "certificates"

    @property
    def server(self) -> str:
        return f"https://{self.machine.address}:{PORT}"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "admin.kubeconfig"

    @property
    def api(self) -> KubeApi:
        return KubeApi.of(self.kubeconfig)

    def load(self, archive: Path) -> None:
        """Import the images of an archive on both nodes."""
        with ThreadPoolExecutor() as beside:
            list(beside.map(lambda node: node.load(archive), self.nodes))

    # ---- programs

    def _command(self, name: str) -> list[str]:
        match name:
            case "etcd":
                return [
                    str(programs.etcd()),
                    # In memory, and gone with the machine: it waits for the disk at every write.
                    *("--data-dir", "/run/etcd", "--logger", "zap"),
                    *("--listen-client-urls", "http://127.0.0.1:2379"),
                    *("--advertise-client-urls", "http://127.0.0.1:2379"),
                    *("--listen-peer-urls", "http://127.0.0.1:2380"),
                ]
            case "kube-apiserver":
                return self._apiserver()
        own = name.removeprefix("kube-")
        kubeconfig = str(self.folder / f"{own}.kubeconfig")
        words = [
            programs.server(name),
            *("--kubeconfig", kubeconfig, "--leader-elect=false", "--bind-address", "127.0.0.1"),
            *("--authentication-kubeconfig", kubeconfig, "--profiling=false"),
            *("--authorization-kubeconfig", kubeconfig),
        ]
        if own == "controller-manager":
            words += [
                "--use-service-account-credentials",
                *("--root-ca-file", str(self.certificates / "ca.pem")),
                *("--service-account-private-key-file", str(self.certificates / "server-key.pem")),
                # It would create the default one, which is in /usr.
                *("--flex-volume-plugin-dir", str(self.folder / "plugins")),
                # A busy machine is not a lost node; a lost one is noticed within half a minute.
                *("--node-monitor-period", "2s", "--node-monitor-grace-period", "16s"),
            ]
        return words

    def _apiserver(self) -> list[str]:
        place = self.certificates
        return [
            programs.server("kube-apiserver"),
            *("--etcd-servers", "http://127.0.0.1:2379", "--secure-port", str(PORT)),
            *("--advertise-address", self.machine.address, "--cert-dir", str(self.folder)),
            *("--tls-cert-file", str(place / "server.pem")),
            *("--tls-private-key-file", str(place / "server-key.pem")),
            *("--client-ca-file", str(place / "ca.pem")),
            *("--token-auth-file", str(self.folder / "tokens.csv")),
            *("--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction"),
            *("--service-account-issuer", "https://kubernetes.default.svc"),
            *("--service-account-signing-key-file", str(place / "server-key.pem")),
            *("--service-account-key-file", str(place / "server.pem")),
            *("--service-cluster-ip-range", SERVICES, "--allow-privileged=true"),
            *("--kubelet-client-certificate", str(place / "cert.pem")),
            *("--kubelet-client-key", str(place / "key.pem"), "--profiling=false"),
            *("--kubelet-preferred-address-types", "InternalIP"),
        ]


def _pause_archive() -> Path:
    """Return the image of the container that holds the namespaces of a Pod."""
    return _archive(
        imagekit.empty_tar(), PAUSE, {"Entrypoint": ["/prog", "--sleep", "2000000000"], "Cmd": None}
    )


def _busybox_archive() -> Path:
    return _archive(imagekit.busybox_tar(), BUSYBOX, {"Cmd": ["sh"]})


def _archive(tar: Path, name: str, config: dict[str, object]) -> Path:
    def build(target: Path) -> None:
        image = imagekit.rootfs_sketch(tar, names=(name,), config=config)
        imagekit.write_tar(target, imagekit.docker_members(image))

    return imagekit.cached(f"{tar.stem}.cluster.tar", build)
