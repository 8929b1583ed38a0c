"""The Helm chart renders the plain manifests, and installs them on a real cluster."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests import built_images
from tests.cluster import programs
from tests.cluster.installation import (
    DEPLOY,
    NAMESPACE,
    OF_THIS_CLUSTER,
    SANDBOXES,
    Installation,
    ask,
    client,
    manifests,
    secret,
    variables,
)
from tests.patience import FAR_TOO_LATE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cluster.cluster import Cluster

pytestmark = [
    pytest.mark.long("needs Helm (make test-cluster)"),
    pytest.mark.timeout(built_images.PATIENCE_S),
    pytest.mark.promise("P105"),
]
CHART = str(DEPLOY / "helm" / "sandkasten")
TENANT = "sandboxes-acme"
_OF_HELM = {
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
    "helm.sh/resource-policy",
    "checksum/settings",
}


@pytest.fixture
def helm(tmp_path: Path) -> Callable[..., str]:
    """Run Helm and return its output, or what it says when it fails."""
    environment = {
        **os.environ,
        **{f"HELM_{name}_HOME": str(tmp_path / name) for name in ("CACHE", "CONFIG", "DATA")},
    }

    def run(*words: str, values: dict[str, Any] | None = None, good: bool = True) -> str:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values or {}))
        done = subprocess.run(
            [str(programs.helm()), *words, *(("--values", str(file)) if values else ())],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=3 * FAR_TOO_LATE_S,
        )
        assert (done.returncode == 0) is good, done.stdout + done.stderr
        return done.stdout if good else done.stderr

    return run


def _rendered(
    helm: Callable[..., str], values: dict[str, Any] | None = None, name: str = NAMESPACE
) -> list[dict[str, Any]]:
    words = ("--namespace", NAMESPACE, "--kube-version", "1.36")
    text = helm("template", name, CHART, *words, values=values)
    return [one for one in yaml.safe_load_all(text) if one]


def _by_name(objects: list[dict[str, Any]]) -> dict[tuple[str, ...], Any]:
    """Return the objects without what only Helm adds, and with the settings as values."""
    found = {}
    for one in objects:
        one = _without(one)
        if one["kind"] == "ConfigMap":
            one["data"] = yaml.safe_load(one["data"]["sandkasten.yaml"])
        # Names are unique, but for those of a tenant's namespace.
        tenant = (TENANT,) if one["metadata"].get("namespace") == TENANT else ()
        found[one["kind"], one["metadata"]["name"], *tenant] = one
    return found


def _without(value: Any) -> Any:
    if isinstance(value, list):
        return [_without(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _without(one) for key, one in value.items() if key not in _OF_HELM}
    return {key: one for key, one in kept.items() if not (key == "annotations" and one == {})}


def test_the_chart_renders_the_plain_manifests(helm: Callable[..., str]) -> None:
    wanted = _by_name(manifests())
    # Helm creates the namespace of a release itself.
    del wanted["Namespace", NAMESPACE]
    assert _by_name(_rendered(helm)) == wanted


def test_values_add_the_optional_objects(helm: Callable[..., str]) -> None:
    names = ("quota", "autoscaler", "service-monitor", "workspaces")
    wanted = _by_name(manifests(*names))
    quota = wanted["ResourceQuota", "sandkasten"]["spec"]["hard"]
    values = {
        "sandboxes": {"quota": quota},
        "autoscaling": {"enabled": True},
        "serviceMonitor": {"enabled": True},
        "settings": {"backends": {"kubernetes": {"workspaces": {"enabled": True}}}},
    }
    found = _by_name(_rendered(helm, values))
    told = found["ConfigMap", "sandkasten"]["data"]["backends"]["kubernetes"].pop("workspaces")
    assert told == {"enabled": True}
    # Else each upgrade would set the number back.
    assert "replicas" not in found["Deployment", "sandkasten"]["spec"]
    del wanted["Deployment", "sandkasten"]["spec"]["replicas"]
    del wanted["Namespace", NAMESPACE]
    assert found == wanted


@pytest.mark.promise("P109")
def test_a_tenant_gets_a_namespace_with_a_quota(helm: Callable[..., str]) -> None:
    wanted = _by_name(manifests("tenant"))
    del wanted["Namespace", NAMESPACE]
    quota = wanted["ResourceQuota", "sandkasten", TENANT]["spec"]["hard"]
    settings = wanted["ConfigMap", "sandkasten"]["data"]["backends"]["kubernetes"]
    settings["tenant_namespaces"] = {"acme": TENANT}
    tenant = {"namespace": TENANT, "tenants": ["acme"], "quota": quota}
    found = _by_name(_rendered(helm, {"sandboxes": {"tenantNamespaces": [tenant]}}))
    assert found == wanted


def test_rights_for_agent_sandbox_are_given_in_every_namespace(helm: Callable[..., str]) -> None:
    before = _by_name(_rendered(helm))
    found = _by_name(_rendered(helm, {"agentSandbox": True}))
    added = {name: one for name, one in found.items() if name not in before}
    plain = _by_name(manifests("agent-sandbox"))
    assert added == {name: one for name, one in plain.items() if "agent-sandbox" in name[1]}
    tenant = {"namespace": TENANT, "tenants": ["acme", "beta"]}
    more = {"agentSandbox": True, "sandboxes": {"tenantNamespaces": [tenant]}}
    found = _by_name(_rendered(helm, more))
    rules = [
        one["rules"]
        for name, one in found.items()
        if name[:2] == ("Role", "sandkasten-agent-sandbox")
    ]
    assert len(rules) == 2
    assert rules[0] == rules[1]
    # Without a quota there is none.
    assert not [name for name in found if name[0] == "ResourceQuota"]


@pytest.mark.promise("P111")
def test_a_network_for_sandboxes_adds_its_policy(helm: Callable[..., str]) -> None:
    wanted = _by_name(manifests("network-full"))["NetworkPolicy", "sandkasten-full"]
    values: dict[str, Any] = {
        "settings": {"backends": {"kubernetes": {"networks": {"full": True}}}},
        "networkPolicy": {"except": ["8.8.8.8/32"]},
    }
    found = _by_name(_rendered(helm, values))
    assert found["ConfigMap", "sandkasten"]["data"]["backends"]["kubernetes"]["networks"] == {
        "full": True
    }
    block = wanted["spec"]["egress"][0]["to"][0]["ipBlock"]
    block["except"].append("8.8.8.8/32")
    assert found["NetworkPolicy", "sandkasten-full"] == wanted
    assert _level(found) == "restricted"
    by_rule: dict[str, Any] = {
        "settings": {"backends": {"kubernetes": {"networks": {"rules": True}}}}
    }
    by_rule["networkPolicy"] = values["networkPolicy"]
    found = _by_name(_rendered(helm, by_rule))
    assert found["NetworkPolicy", "sandkasten-full"] == wanted
    assert _level(found) == "privileged"
    tenant = {"namespace": TENANT, "tenants": ["acme"]}
    found = _by_name(_rendered(helm, {**values, "sandboxes": {"tenantNamespaces": [tenant]}}))
    wanted["metadata"]["namespace"] = TENANT
    assert found["NetworkPolicy", "sandkasten-full", TENANT] == wanted


def test_one_claim_for_all_workspaces_needs_no_further_rights(helm: Callable[..., str]) -> None:
    settings = {"backends": {"kubernetes": {"workspaces": {"enabled": True, "claim": "all"}}}}
    found = _by_name(_rendered(helm, {"settings": settings}))
    assert [name for kind, name in found if kind == "Role"] == ["sandkasten"]


def _level(found: dict[tuple[str, ...], Any]) -> str:
    """Return what Pod Security allows in the namespace of the sandboxes."""
    labels = found["Namespace", SANDBOXES]["metadata"]["labels"]
    return str(labels["pod-security.kubernetes.io/enforce"])


def test_names_and_settings_follow_the_values(helm: Callable[..., str]) -> None:
    values = {
        "image": {"repository": "registry.example.org/box", "tag": "7"},
        "imagePullSecrets": ["pull"],
        "hosts": ["sandboxes.example.org"],
        "sandboxes": {"namespace": "boxes", "createNamespace": False},
        "settings": {"drain_seconds": 5, "backends": {"kubernetes": {"port": 9000}}},
        "secretName": "mine",
        "env": [{"name": "TZ", "value": "UTC"}],
        "podAnnotations": {"a": "b"},
        "serviceAccountAnnotations": {"c": "d"},
        "nodeSelector": {"e": "f"},
        "tolerations": [{"key": "g", "operator": "Exists"}],
    }
    found = _by_name(_rendered(helm, values, "other"))
    assert {one["metadata"]["namespace"] for one in found.values()} == {NAMESPACE, "boxes"}
    settings = found["ConfigMap", "other"]["data"]
    assert settings["backends"]["kubernetes"] == {
        "namespace": "boxes",
        "installation": "sandkasten.other",
        "runner_image": "registry.example.org/box:7",
        "port": 9000,
    }
    assert settings["http"]["allowed_hosts"][-1] == "sandboxes.example.org"
    assert settings["drain_seconds"] == 5
    (rule,) = found["NetworkPolicy", "other-closed"]["spec"]["ingress"]
    assert [one["port"] for one in rule["ports"]] == [9000]
    pod = found["Deployment", "other"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "registry.example.org/box:7"
    assert container["env"][-1] == values["env"][0]  # type: ignore[index]
    named = [one["valueFrom"]["secretKeyRef"] for one in container["env"] if "valueFrom" in one]
    assert {one["name"] for one in named} == {"mine"}
    assert pod["metadata"]["annotations"]["a"] == "b"
    assert pod["spec"]["nodeSelector"] == values["nodeSelector"]
    assert pod["spec"]["tolerations"] == values["tolerations"]
    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert found["ServiceAccount", "other"]["metadata"]["annotations"] == {"c": "d"}


def test_the_chart_passes_helm_lint(helm: Callable[..., str]) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART)


def test_a_value_that_the_chart_does_not_know_is_refused(helm: Callable[..., str]) -> None:
    told = helm("template", "sandkasten", CHART, values={"replica": 3}, good=False)
    assert "replica" in told


@pytest.fixture
def released(
    cluster_with_daemon: Cluster, store_url: str, helm: Callable[..., str]
) -> Iterator[tuple[Installation, dict[str, Any]]]:
    """A release of the chart, and its values."""
    cluster = cluster_with_daemon
    made = Installation(cluster, sandboxes=(SANDBOXES, TENANT, "sandboxes-beta"))
    values = {
        "settings": OF_THIS_CLUSTER,
        "env": variables(cluster),
        "networkPolicy": {"clients": [client(cluster)]},
        "sandboxes": {
            "tenantNamespaces": [
                {"namespace": TENANT, "tenants": ["acme"], "quota": {"pods": "3"}},
                {"namespace": "sandboxes-beta", "tenants": ["beta"]},
            ]
        },
    }
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    try:
        for one in (namespace, secret(store_url)):
            cluster.api.apply(one)
        helm("install", NAMESPACE, CHART, *_place(cluster), values=values)
        made.wait_until_rolled_out()
        yield made, values
    finally:
        made.remove()


def _session_of(installed: Installation, tenant: str) -> tuple[str, str]:
    """Create a session as a tenant; return its id and the key."""
    at = installed.endpoints()[0]
    body = {"tenant": tenant, "name": tenant, "scopes": ["sessions"]}
    key = ask(at, "POST", "/v1/keys", body)["key"]
    return ask(at, "POST", "/v1/sessions", {}, key=key)["id"], key


def _place(cluster: Cluster) -> tuple[str, ...]:
    return ("--namespace", NAMESPACE, "--kubeconfig", str(cluster.kubeconfig))


def test_a_release_keeps_its_sessions_through_an_upgrade_and_an_uninstall(
    released: tuple[Installation, dict[str, Any]], helm: Callable[..., str]
) -> None:
    installed, values = released
    cluster = installed.cluster
    made = ask(installed.endpoints()[0], "POST", "/v1/sessions", {})
    path = f"/v1/sessions/{made['id']}/exec"
    ask(installed.endpoints()[0], "POST", path, {"cmd": "export KEPT=1"})
    theirs = {name: _session_of(installed, name) for name in ("acme", "beta")}
    for name, (its, _) in theirs.items():
        (pod,) = cluster.api.pods(namespace=f"sandboxes-{name}")
        assert pod["metadata"]["name"] == its.replace("_", "-")
    quota = cluster.api.ask("GET", f"/api/v1/namespaces/{TENANT}/resourcequotas/{NAMESPACE}")
    assert quota["status"]["hard"] == {"pods": "3"}
    before = {pod["metadata"]["uid"] for pod in installed.pods()}
    changed = {**values, "settings": {**values["settings"], "drain_seconds": 10}}
    helm("upgrade", NAMESPACE, CHART, *_place(cluster), values=changed)
    after = {pod["metadata"]["uid"] for pod in installed.wait_until_rolled_out()}
    assert not after & before
    for address in installed.endpoints():
        assert ask(address, "POST", path, {"cmd": "echo $KEPT"})["stdout"] == "1\n"
        for its, key in theirs.values():
            command = {"cmd": ["echo", "there"]}
            done = ask(address, "POST", f"/v1/sessions/{its}/exec", command, key=key)
            assert done["stdout"] == "there\n"
    helm("uninstall", NAMESPACE, *_place(cluster))
    names = {pod["metadata"]["name"] for pod in cluster.api.pods(namespace=SANDBOXES)}
    assert made["id"].replace("_", "-") in names
