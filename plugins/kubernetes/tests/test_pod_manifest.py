"""The Pod of a sandbox, and the rules that each must keep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandkasten.errors import BackendUnavailable, UnsupportedByBackend
from sandkasten.model.ids import SandboxId
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec, HostMount, Volume
from sandkasten.model.sandbox.gpus import GpuRequest
from sandkasten.model.sandbox.limits import MIB, Limits
from sandkasten.model.sandbox.network_limits import Allowance, NetworkLimits
from sandkasten.model.sandbox.network_policy import NetworkCeiling, NetworkPolicy
from sandkasten_kubernetes import pod_manifest, pod_names, refusals
from sandkasten_kubernetes.kubernetes_options import KubernetesOptions
from sandkasten_kubernetes.network import pod_egress

ID = SandboxId("sbx_0123456789abcdef")
SPEC = CellSpec(image=Image("example.org/python:3.11", "engine"), env={"A": "b"}, hostname="box")
FULL = NetworkPolicy(full=True)
OPTIONS = KubernetesOptions(runner_image="example.org/sandkasten:1", lifetime_s=7200.4)


def made(spec: CellSpec = SPEC, **changes: Any) -> dict[str, Any]:
    return pod_manifest.pod(ID, spec, replace(OPTIONS, **changes), "mine", "attempt")


def containers(pod: dict[str, Any]) -> dict[str, Any]:
    return {container["name"]: container for container in pod["spec"]["containers"]}


def mounts(container: dict[str, Any]) -> dict[str, str]:
    return {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}


def volumes(pod: dict[str, Any]) -> dict[str, Any]:
    return {volume["name"]: volume for volume in pod["spec"]["volumes"]}


@pytest.mark.promise("P100")
def test_every_container_is_closed():
    pod = made()
    together = pod["spec"]["securityContext"]
    assert together["runAsNonRoot"] is True
    assert together["runAsUser"] == together["runAsGroup"] == 1000
    assert together["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(pod).values():
        closed = container["securityContext"]
        assert closed["capabilities"] == {"drop": ["ALL"]}
        assert closed["allowPrivilegeEscalation"] is False
        assert closed["readOnlyRootFilesystem"] is True
        assert closed["privileged"] is False
        assert "runAsUser" not in closed
        assert set(container["resources"]["limits"]) == {"cpu", "memory"}


@pytest.mark.promise("P100")
def test_a_pod_has_nothing_of_the_cluster_and_an_end():
    spec = made()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["shareProcessNamespace"] is False
    assert spec["restartPolicy"] == "Never"
    assert spec["activeDeadlineSeconds"] == 7201
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & set(spec)
    assert all("hostPath" not in volume for volume in spec["volumes"])


@pytest.mark.promise("P101")
def test_only_the_gate_has_the_keys_and_the_listener():
    pod = made()
    by_name = containers(pod)
    with_keys = [
        name for name, container in by_name.items() if "keys" in mounts(container).values()
    ]
    with_listener = [
        name for name, container in by_name.items() if "gate" in mounts(container).values()
    ]
    assert with_keys == with_listener == [pod_names.GATE_CONTAINER]
    assert volumes(pod)["keys"]["secret"]["secretName"] == pod_names.pod_name(ID)
    shared = set(mounts(by_name["gate"]).values()) & set(mounts(by_name["sandbox"]).values())
    assert shared == {"entry"}
    entry = {"name": "entry", "mountPath": pod_names.ENTRY_DIR}
    assert entry in by_name["gate"]["volumeMounts"]
    assert {**entry, "readOnly": True} in by_name["sandbox"]["volumeMounts"]
    assert all("valueFrom" not in variable for variable in by_name["sandbox"]["env"])


@pytest.mark.promise("P107")
def test_the_gate_knows_what_must_be_out_of_reach():
    pod = pod_manifest.pod(ID, SPEC, OPTIONS, "mine", "attempt", ["10.0.0.1:443"])
    assert containers(pod)["gate"]["command"][-1] == "10.0.0.1:443"
    assert containers(made())["gate"]["command"][-1] == pod_names.LISTENER
    assert "10.0.0.1:443" not in containers(pod)["sandbox"]["command"]


@pytest.mark.promise("P111")
def test_a_network_is_a_label_and_a_resolver():
    closed, full = made(), made(replace(SPEC, network=FULL), network_full=True)
    labels = [pod["metadata"]["labels"][pod_names.LABEL_NETWORK] for pod in (closed, full)]
    assert labels == ["closed", "full"]
    assert closed["spec"]["dnsConfig"] == {"nameservers": ["127.0.0.1"]}
    assert full["spec"]["dnsPolicy"] == "ClusterFirst"
    # Nothing else about the Pod is different.
    for pod in (closed, full):
        del pod["metadata"]["labels"][pod_names.LABEL_NETWORK]
        del pod["spec"]["dnsPolicy"], pod["spec"]["dnsConfig"]
    assert closed == full


def test_name_servers_and_fixed_names_are_those_of_the_operator():
    ceiling = NetworkCeiling(
        servers=("192.0.2.53:53", "[2001:db8::53]:53", "192.0.2.54:5353"),
        hosts={"db.internal": ("10.0.0.7", "10.0.0.8")},
    )
    spec = made(replace(SPEC, network=FULL, ceiling=ceiling))["spec"]
    assert spec["dnsPolicy"] == "None"
    assert spec["dnsConfig"] == {"nameservers": ["192.0.2.53", "2001:db8::53"]}
    assert spec["hostAliases"] == [
        {"ip": "10.0.0.7", "hostnames": ["db.internal"]},
        {"ip": "10.0.0.8", "hostnames": ["db.internal"]},
    ]
    assert "hostAliases" not in made(replace(SPEC, ceiling=ceiling))["spec"]


@pytest.mark.promise("P111")
@pytest.mark.parametrize(
    ("network", "about"),
    [
        (NetworkPolicy(allow=("example.com",)), "rules"),
        (replace(FULL, deny=("192.0.2.0/24",)), "rules"),
        (replace(FULL, dry_run=True), "rules"),
        (replace(FULL, inspect=True), "inspection"),
        (replace(FULL, limits=NetworkLimits(connections=9)), "limit"),
        (replace(FULL, limits=NetworkLimits(bandwidth_bps=8)), "limit"),
        (replace(FULL, allowance=Allowance(bytes_in=1)), "quota"),
    ],
)
def test_what_a_network_policy_cannot_enforce_is_refused(network, about):
    options = replace(OPTIONS, network_full=True)
    refusals.check(replace(SPEC, network=replace(FULL, allowance=Allowance())), options)
    with pytest.raises(UnsupportedByBackend, match=about):
        refusals.check(replace(SPEC, network=network), options)


@pytest.mark.promise("P111")
def test_a_network_by_rule_adds_containers_and_changes_nothing_of_the_sandbox():
    options = replace(OPTIONS, network_rules=True)
    named = replace(SPEC, network=NetworkPolicy(allow=("example.com",)))
    refusals.check(named, options)
    with pytest.raises(UnsupportedByBackend, match="inspection"):
        refusals.check(replace(SPEC, network=replace(FULL, inspect=True)), options)
    closed = containers(pod_manifest.pod(ID, SPEC, options, "mine", "attempt", ["10.0.0.1:443"]))
    pod = pod_manifest.pod(ID, named, options, "mine", "attempt", ["10.0.0.1:443"])
    assert pod["metadata"]["labels"][pod_names.LABEL_NETWORK] == "rules"
    by_name = containers(pod)
    # The gate waits for the egress process, which waits for the policy.
    assert list(by_name) == ["gate", "egress", "sandbox"]
    assert by_name["gate"]["command"][-2:] == ["--network", pod_names.NETWORK_DIR]
    assert by_name["egress"]["command"][-1] == "10.0.0.1:443"
    (init,) = pod["spec"]["initContainers"]
    assert init["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    assert by_name["egress"]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert by_name["egress"]["securityContext"]["runAsUser"] not in (0, 1000)
    # The egress process has neither keys nor the way to the runner.
    assert set(mounts(by_name["egress"]).values()) == {"network-files", "network"}
    added = set(mounts(by_name["sandbox"]).items()) - set(mounts(closed["sandbox"]).items())
    assert added == {("/etc/resolv.conf", "resolver")}
    same = {key: value for key, value in by_name["sandbox"].items() if key != "volumeMounts"}
    assert same == {key: closed["sandbox"][key] for key in same}
    items = [item["key"] for item in volumes(pod)["resolver"]["secret"]["items"]]
    assert items == ["resolv.conf"]
    assert set(pod_egress.secret_files(named, options)) >= {"egress.json", *items}


@pytest.mark.promise("P111")
def test_a_network_that_the_operator_has_not_opened_is_refused_with_the_setting():
    with pytest.raises(UnsupportedByBackend) as refused:
        refusals.check(replace(SPEC, network=FULL), OPTIONS)
    assert "backends.kubernetes.networks.full: true" in refused.value.hint


def test_names_and_labels_lead_back_to_the_sandbox():
    metadata = made()["metadata"]
    assert metadata["name"] == "sbx-0123456789abcdef"
    assert pod_names.id_in(metadata["labels"][pod_names.LABEL_ID]) == ID
    assert metadata["labels"][pod_names.LABEL_OWNER] == "mine"
    assert metadata["annotations"][pod_names.ATTEMPT] == "attempt"
    secret = pod_manifest.secret(ID, "mine", "attempt", {"token": "dA=="})["metadata"]
    assert secret["name"] == metadata["name"]
    assert secret["labels"].items() <= metadata["labels"].items()


def test_limits_become_limits_requests_and_sizes():
    spec = replace(
        SPEC,
        limits=Limits(
            cpus=0.5, memory_bytes=256 * MIB, workspace_bytes=10 * MIB, tmp_bytes=5 * MIB,
            open_files=99,
        ),
    )  # fmt: skip
    pod = made(spec, overcommit=4.0)
    box = containers(pod)["sandbox"]
    assert box["resources"] == {
        "limits": {"cpu": "500m", "memory": str(256 * MIB)},
        "requests": {"cpu": "125m", "memory": str(64 * MIB)},
    }
    assert volumes(pod)["workspace"]["emptyDir"] == {"sizeLimit": str(10 * MIB)}
    assert volumes(pod)["tmp"]["emptyDir"] == {"medium": "Memory", "sizeLimit": str(5 * MIB)}
    assert box["command"][-2:] == ["--open-files", "99"]
    assert box["image"] == "example.org/python:3.11"


def test_everything_that_is_written_is_a_sized_volume():
    pod = made()
    sized = volumes(pod)
    for path in ("/workspace", "/home/sandbox", "/tmp", "/var/tmp", "/dev/shm"):
        assert int(sized[mounts(containers(pod)["sandbox"])[path]]["emptyDir"]["sizeLimit"]) > 0


def test_values_of_variables_reach_the_command_as_they_are():
    spec = replace(SPEC, env={"PRICE": "$(HOME) $5"})
    variables = {variable["name"]: variable["value"] for variable in pod_manifest.environment(spec)}
    # The kubelet replaces $(NAME), and reads $$ as $.
    assert variables["PRICE"] == "$$(HOME) $$5"


def test_a_host_name_has_the_form_that_kubernetes_takes():
    pod = pod_manifest.pod(ID, replace(SPEC, hostname="MyBox"), OPTIONS, "owner", "attempt")
    assert pod["spec"]["hostname"] == "mybox"


def test_the_path_of_the_image_stays_unless_it_is_known():
    names = {variable["name"] for variable in pod_manifest.environment(SPEC)}
    assert "PATH" not in names
    with_path = replace(SPEC, image=replace(SPEC.image, env={"PATH": "/opt/bin"}))
    assert {"name": "PATH", "value": "/opt/bin"} in pod_manifest.environment(with_path)


def test_options_of_the_operator_place_the_pod():
    spec = made(
        runtime_class="gvisor",
        node_selector={"pool": "boxes"},
        tolerations=({"key": "boxes", "operator": "Exists"},),
        pull_secrets=("registry",),
        pull_policy="Always",
        seccomp_profile="profiles/box.json",
        user_namespaces=True,
    )["spec"]
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["nodeSelector"] == {"pool": "boxes"}
    assert {"key": "boxes", "operator": "Exists"} in spec["tolerations"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert {container["imagePullPolicy"] for container in spec["containers"]} == {"Always"}
    assert spec["securityContext"]["seccompProfile"] == {
        "type": "Localhost",
        "localhostProfile": "profiles/box.json",
    }
    assert spec["hostUsers"] is False


@pytest.mark.promise("P102")
def test_pods_of_sandboxes_prefer_a_node_with_fewer_of_them():
    pod = made()
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    # A cluster whose other nodes are full still takes it.
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    chosen = spread["labelSelector"]["matchLabels"]
    assert chosen.items() <= pod["metadata"]["labels"].items()


def test_a_pod_without_options_leaves_them_to_the_cluster():
    spec = made()["spec"]
    assert not {"runtimeClassName", "nodeSelector", "imagePullSecrets", "hostUsers"} & set(spec)


def test_the_gate_copies_the_runner_before_the_sandbox_is_started():
    spec = made(programs="/opt/programs")["spec"]
    # The kubelet notices the end of an init container a second later.
    assert "initContainers" not in spec
    gate, sandbox = spec["containers"]
    # It starts the second container when the hook of the first one has succeeded.
    hook = gate["lifecycle"]["postStart"]["exec"]["command"]
    assert hook == ["/opt/programs/sandkasten-runner", "--install", pod_names.RUNNER_PATH]
    assert sandbox["command"][0] == pod_names.RUNNER_PATH
    assert pod_names.RUNNER_PATH.startswith(f"{pod_names.ENTRY_DIR}/")


@pytest.mark.parametrize(
    ("change", "about"),
    [
        ({"profile": "dev"}, "dev profile"),
        ({"writable_root": True}, "writable root"),
        ({"workspace": Volume("notes", "volume")}, "named workspaces"),
        ({"mounts": (HostMount("/srv", "/mnt"),)}, "mounts"),
        ({"gpus": GpuRequest(1)}, "gpus"),
        ({"image": Image("debian", "layers", id="sha256:00")}, "store"),
        ({"image": Image("host")}, "store"),
        ({"network": NetworkPolicy(full=True)}, "network"),
        ({"env": {"RAW": "a\udc80b"}}, "RAW"),
    ],
)
def test_what_a_pod_cannot_have_is_refused_by_name(change, about):
    with pytest.raises(UnsupportedByBackend, match=about):
        refusals.check(replace(SPEC, **change), OPTIONS)


def test_without_an_image_that_has_the_runner_nothing_is_made():
    with pytest.raises(BackendUnavailable, match="runner") as raised:
        refusals.check(SPEC, KubernetesOptions())
    assert "backends.kubernetes.runner_image" in raised.value.hint
