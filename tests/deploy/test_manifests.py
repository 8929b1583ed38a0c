"""The files that install the daemon on a cluster fit the daemon that they install."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from sandkasten import __version__
from sandkasten.model.addresses import CLOSED_V4
from sandkasten_kubernetes import kept_claims, pod_names, pod_network
from sandkasten_kubernetes.cluster_requirements import _NEEDED
from sandkasten_runtime.assembly.settings.resolver import Settings, load
from sandkasten_server.api.routes.route_table import route_table
from sandkasten_server.daemon.settings.http_settings import HttpSettings

ROOT = Path(__file__).resolve().parents[2]
PLAIN = ROOT / "deploy" / "kubernetes"
CHART = ROOT / "deploy" / "helm" / "sandkasten"
GUIDE = ROOT / "docs" / "guides" / "kubernetes.md"
TENANT_NAMESPACE = "sandboxes-acme"
pytestmark = pytest.mark.promise("P105")


def objects(*kinds: str) -> list[dict[str, Any]]:
    files = sorted(PLAIN.rglob("*.yaml"))
    found = [one for file in files for one in yaml.safe_load_all(file.read_text())]
    return [one for one in found if not kinds or one["kind"] in kinds]


def only(kind: str, name: str = "sandkasten", tenant: bool = False) -> dict[str, Any]:
    """Return an object of the installation, or of the example of a tenant's namespace."""
    (found,) = [
        one
        for one in objects(kind)
        if one["metadata"]["name"] == name
        and (one["metadata"].get("namespace") == TENANT_NAMESPACE) is tenant
    ]
    return found


def guide(kind: str) -> list[dict[str, Any]]:
    """Return the objects of a kind that the guide shows."""
    return [
        one
        for text in _blocks()
        for one in yaml.safe_load_all(text)
        # A snippet of rules alone is a list.
        if isinstance(one, dict) and one.get("kind") == kind
    ]


def daemon_pod() -> dict[str, Any]:
    found: dict[str, Any] = only("Deployment")["spec"]["template"]["spec"]
    return found


def container() -> dict[str, Any]:
    (found,) = daemon_pod()["containers"]
    return dict(found)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """What a daemon with these manifests reads: its file, and its variables over the image's."""
    file = tmp_path / "sandkasten.yaml"
    file.write_text(only("ConfigMap")["data"]["sandkasten.yaml"])
    environment = re.findall(
        r"(SANDKASTEN_\w+)=(\S+)", (ROOT / "deploy" / "Dockerfile").read_text()
    )
    given = {one["name"]: one.get("value", "") for one in container()["env"]}
    given |= {
        "SANDKASTEN_API_KEY": "sk-0123456789abcdef",
        "SANDKASTEN_STORE_URL": "postgresql://sandkasten@db/sandkasten?sslmode=require",
    }
    return load({"config": str(file)}, {**dict(environment), **given}, tmp_path)


def test_the_settings_choose_the_cluster(settings: Settings) -> None:
    assert settings.named("backend") == "kubernetes"
    assert settings.policy.default_image == "python:3.11-slim"
    assert settings.plugins["kubernetes"].installation == "sandkasten.sandkasten"
    assert settings.warnings == ()


def test_every_object_is_in_a_namespace_that_the_manifests_create(settings: Settings) -> None:
    namespaces = {one["metadata"]["name"] for one in objects("Namespace")}
    others = [one for one in objects() if one["kind"] not in ("Namespace", "Kustomization")]
    assert {one["metadata"]["namespace"] for one in others} == namespaces
    assert settings.plugins["kubernetes"].namespace == only("Role")["metadata"]["namespace"]
    assert only("Deployment")["metadata"]["namespace"] != settings.plugins["kubernetes"].namespace


def test_image_runner_and_chart_are_of_this_version(settings: Settings) -> None:
    image = f"sandkasten:{__version__}"
    assert (container()["image"], settings.plugins["kubernetes"].runner_image) == (image, image)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_role_has_what_the_backend_needs_and_nothing_else() -> None:
    granted = {
        (verb, resource)
        for rule in only("Role")["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {
        *((verb, "/".join(filter(None, (kind, part)))) for verb, kind, part in _NEEDED),
        ("create", "pods/exec"),
        ("get", "pods/exec"),
        ("get", "pods/log"),
    }
    assert [one["kind"] for one in objects("ClusterRole", "ClusterRoleBinding")] == []


@pytest.mark.promise("P109")
def test_a_namespace_of_a_tenant_is_as_that_of_all_tenants() -> None:
    for kind, name in (
        ("Role", "sandkasten"),
        ("RoleBinding", "sandkasten"),
        ("NetworkPolicy", "sandkasten-closed"),
    ):
        ours, theirs = only(kind, name), only(kind, name, tenant=True)
        ours["metadata"]["namespace"] = TENANT_NAMESPACE
        assert theirs == ours
    assert only("ResourceQuota", tenant=True)["spec"]["hard"]
    labels = [one["metadata"]["labels"] for one in objects("Namespace")]
    assert labels == [{"pod-security.kubernetes.io/enforce": "restricted"}] * 3


def test_the_rights_for_agent_sandbox_are_those_of_the_guide() -> None:
    rules = [yaml.safe_load(text) for text in _blocks() if "agents.x-k8s.io]" in text]
    assert rules == [only("Role", "sandkasten-agent-sandbox")["rules"]]


def _blocks() -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def test_the_rights_for_claims_are_optional_and_as_needed() -> None:
    rules = only("Role", "sandkasten-workspaces")["rules"]
    granted = {
        (verb, kind, "") for one in rules for kind in one["resources"] for verb in one["verbs"]
    }
    assert granted == set(kept_claims.NEEDED)
    assert f'  - {{apiGroups: [""], resources: [{kept_claims.CLAIMS}]' in GUIDE.read_text()


def test_the_guide_shows_the_role_of_the_manifests() -> None:
    assert [one["rules"] for one in guide("Role")] == [only("Role")["rules"]]


def test_probes_ask_routes_that_need_no_key() -> None:
    public = {one.path for one in route_table().routes if one.method == "GET" and one.scope is None}
    asked = {
        container()[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert asked == {"/readyz", "/healthz"}
    assert asked <= public


def test_a_daemon_that_stops_has_time_to_drain(settings: Settings) -> None:
    before = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = daemon_pod()["terminationGracePeriodSeconds"]
    # Responses in progress, then work in sandboxes: `serve` waits for each of them.
    assert grace > before + 2 * settings.of(HttpSettings).drain_s


def test_a_client_in_the_cluster_may_use_the_name_of_the_service(settings: Settings) -> None:
    about = only("Service")["metadata"]
    name = f"{about['name']}.{about['namespace']}"
    assert {about["name"], name, f"{name}.svc", f"{name}.svc.cluster.local"} == {
        *settings.of(HttpSettings).limits.allowed_hosts
    }


def test_only_the_daemon_reaches_sandboxes_and_they_reach_nothing(settings: Settings) -> None:
    closed = only("NetworkPolicy", "sandkasten-closed")
    assert closed["metadata"]["namespace"] == settings.plugins["kubernetes"].namespace
    assert closed["spec"]["podSelector"] == {}
    assert closed["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert closed["spec"]["egress"] == []
    (rule,) = closed["spec"]["ingress"]
    assert [one["port"] for one in rule["ports"]] == [settings.plugins["kubernetes"].port]
    (client,) = rule["from"]
    labels = only("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert client["podSelector"]["matchLabels"] == labels
    own = {"kubernetes.io/metadata.name": only("Deployment")["metadata"]["namespace"]}
    assert client["namespaceSelector"]["matchLabels"] == own


def test_no_secret_is_in_the_files() -> None:
    assert objects("Secret") == []
    named = [one["valueFrom"]["secretKeyRef"] for one in container()["env"] if "valueFrom" in one]
    assert {one["key"] for one in named} == {"api-key", "store-url", "secrets-key"}


def test_the_values_of_the_chart_fit_their_schema_which_refuses_others() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(values, schema)
    assert set(values) == set(schema["properties"]) - {"global"}
    for wrong in (
        {"replica": 3},
        {"settings": {"api_key": "sk-0123456789abcdef"}},
        {"settings": {"store": {"url": "postgresql://u:p@h/d"}}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**values, **wrong}, schema)


@pytest.mark.promise("P111")
def test_a_sandbox_with_a_network_reaches_public_addresses_alone(settings: Settings) -> None:
    policy = only("NetworkPolicy", "sandkasten-full")
    assert policy["metadata"]["namespace"] == settings.plugins["kubernetes"].namespace
    (selects,) = policy["spec"]["podSelector"]["matchExpressions"]
    assert (selects["key"], selects["operator"]) == (pod_names.LABEL_NETWORK, "In")
    assert selects["values"] == [pod_network.FULL, pod_network.RULES]
    # What may reach it is said by the policy for every sandbox.
    assert policy["spec"]["policyTypes"] == ["Egress"]
    public, names = policy["spec"]["egress"]
    (block,) = public["to"]
    assert block["ipBlock"]["cidr"] == "0.0.0.0/0"
    assert block["ipBlock"]["except"] == [str(one) for one in CLOSED_V4]
    assert {one["port"] for one in names["ports"]} == {53}
    assert settings.plugins["kubernetes"].network_full is False
    (shown,) = [one for one in guide("NetworkPolicy") if one["metadata"]["name"].endswith("-full")]
    assert shown["spec"]["egress"] == policy["spec"]["egress"]
    assert shown["spec"]["podSelector"] == policy["spec"]["podSelector"]
