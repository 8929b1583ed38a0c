"""Which backend a request gets by `policy.backends`, and when the next one of a list is tried.

Every backend is the unisolated one, renamed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    InvalidRequest,
    IsolationRefused,
    PolicyDenied,
    QuotaExceeded,
    SandkastenError,
    UnsupportedByBackend,
)
from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.audit_records import AuditFilter
from sandkasten.model.backends.backend_rules import BackendRule
from sandkasten.model.backends.capabilities import Closed
from sandkasten.model.backends.named_backends import NamedBackendRules
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.policy import Policy
from sandkasten.model.sandbox.readiness import Readiness
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.engine import Engine
from sandkasten_runtime.engine.pool.pool_rules import PoolRules
from sandkasten_runtime.images.host_image import HostImages
from sandkasten_runtime.store.audit_directory import AuditDirectory
from sandkasten_server.daemon.metrics import Metrics
from tests.engine.injections import Events
from tests.store.memory_store import MemoryJournal, MemoryStore
from tests.unisolated.backend import UnisolatedBackend, standing_for
from tests.unisolated.run_backend import RunBackend

if TYPE_CHECKING:
    from sandkasten.ports import Backend

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P118")]

AWAY = BackendUnavailable("no engine answers", hint="start it")


class Renamed(UnisolatedBackend):
    """The unisolated backend under another name; `error` is what its create raises."""

    def __init__(self, name: str, error: SandkastenError | None = None) -> None:
        super().__init__()
        self.name = name
        self.capabilities = standing_for(name)
        self.error = error
        self.creates = 0

    async def probe(self) -> Readiness:
        if self.error is not None:
            return Readiness(False, self.error.message, self.error.hint)
        return await super().probe()

    async def create(self, sandbox_id, spec):
        self.creates += 1
        if self.error is not None:
            raise type(self.error)(self.error.message, hint=self.error.hint, **self.error.details)
        return await super().create(sandbox_id, spec)


class NotEnabled(Renamed):
    """A provider that the operator has not enabled."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        closed = Closed(f"backend {name} is not enabled", "enable it")
        self.capabilities = replace(self.capabilities, closed=closed)


@pytest.fixture
async def opened():
    engines: list[Engine] = []

    def open_engine(*backends: Backend, rules: tuple[BackendRule, ...], **more: Any) -> Engine:
        policy = Policy(backends=rules, **more.pop("policy", {}))
        engine = Engine(
            backends={one.name: one for one in backends},
            default_backend=backends[0].name,
            store=MemoryStore(),
            images=HostImages(),
            policy=policy,
            clock=SystemClock(),
            **more,
        )
        engines.append(engine)
        return engine

    yield open_engine
    for engine in engines:
        for info in await engine.list():
            await engine.destroy(info.id)
        await engine.aclose()


async def backend_of(engine: Engine, tenant: str = "default", **asked: Any) -> str:
    agent = asked.pop("agent", None)
    request = CreateRequest(SandboxOptions(**asked), tenant=tenant, agent=agent)
    return (await engine.create(request)).backend


async def test_image_label_tenant_and_agent_choose_and_a_named_backend_wins(opened):
    rules = (
        BackendRule(("gvisor",), tenants=("acme",)),
        BackendRule(("docker",), labels={"team": "research"}),
        BackendRule(("oci",), images=("python",)),
        BackendRule(("kubernetes",), agents=("reviewer",)),
    )
    names = ("local", "gvisor", "docker", "oci", "kubernetes")
    engine = opened(*(Renamed(one) for one in names), rules=rules)
    assert await backend_of(engine) == "local"
    assert await backend_of(engine, "acme", labels={"team": "research"}) == "gvisor"
    assert await backend_of(engine, labels={"team": "research"}) == "docker"
    assert await backend_of(engine, image="python") == "oci"
    assert await backend_of(engine, isolation="standard", image="python") == "oci"
    assert await backend_of(engine, agent="reviewer") == "kubernetes"
    assert await backend_of(engine, "acme", backend="local") == "local"
    assert await backend_of(engine, image="python", isolation="gvisor") == "gvisor"
    result = await engine.run(RunRequest("", "sh", tenant="acme"))
    assert result.backend == "gvisor"


async def test_next_backend_is_used_if_the_first_is_unavailable_and_the_answer_says_so(
    opened, tmp_path
):
    events, metrics = Events(), Metrics()
    audit = AuditDirectory(tmp_path / "audit")
    rule = BackendRule(("docker", "oci", "local"), tenants=("acme",))
    backends = Renamed("docker", AWAY), Renamed("oci", AWAY), Renamed("local")
    engine = opened(*backends, rules=(rule,), events=events, audit=audit, journal=MemoryJournal())
    info = await engine.create(CreateRequest(tenant="acme", key_id="key_1"))
    assert info.backend == "local"
    assert list(info.warnings[:2]) == [
        "backend docker was unavailable, so policy.backends[0] led to backend oci",
        "backend oci was unavailable, so policy.backends[0] led to backend local",
    ]
    ran = await engine.run(RunRequest("echo hi", "sh", tenant="acme"))
    assert (ran.ok, ran.backend, ran.warnings[:2]) == (True, "local", info.warnings[:2])
    rows = await audit.read(AuditFilter(action="policy.pass_over"))
    assert [(row.target, row.outcome, row.detail["next"], row.tenant) for row in rows] == [
        ("docker", "BACKEND_UNAVAILABLE", "oci", "acme"),
        ("oci", "BACKEND_UNAVAILABLE", "local", "acme"),
    ] * 2
    assert rows[0].key_id == "key_1"
    assert rows[0].detail["rule"] == "policy.backends[0]"
    assert rows[0].detail["message"] == "no engine answers"
    for event, fields in events.seen:
        metrics.emit(event, fields)
    text = metrics.render({}, await engine.network.totals())[0].decode()
    assert 'sandkasten_backend_passed_over_total{backend="docker",next="oci"} 2.0' in text


@pytest.mark.promise("P120")
async def test_backend_that_is_not_enabled_is_passed_over_before_it_is_asked_for_anything(opened):
    closed = NotEnabled("fly")
    engine = opened(Renamed("local"), closed, rules=(BackendRule(("fly", "local")),))
    info = await engine.create(CreateRequest())
    assert info.backend == "local"
    assert info.warnings[0] == (
        "backend fly was unavailable, so policy.backends[0] led to backend local"
    )
    with pytest.raises(BackendUnavailable, match="fly is not enabled"):
        await engine.create(CreateRequest(SandboxOptions(backend="fly")))
    assert closed.creates == 0


async def test_gvisor_that_is_not_ready_is_passed_over_only_for_what_is_as_strong(opened):
    broken = Renamed("gvisor", BackendUnavailable("runsc is too old", hint="update"))
    local = Renamed("local")
    # A policy that another program built, unchecked: the weaker backend is not used.
    engine = opened(broken, local, rules=(BackendRule(("gvisor", "local")),))
    with pytest.raises(BackendUnavailable, match="runsc is too old"):
        await engine.create(CreateRequest())
    assert local.creates == 0


async def test_without_a_list_nothing_else_is_tried(opened):
    local = Renamed("local")
    away = Renamed("docker", AWAY)
    engine = opened(away, local, rules=(BackendRule(("docker",)),))
    with pytest.raises(BackendUnavailable, match="no engine answers") as refused:
        await engine.create(CreateRequest())
    assert refused.value.details == {"backend": "docker"}
    with pytest.raises(BackendUnavailable):
        await opened(away, local, rules=()).create(CreateRequest())
    assert local.creates == 0


async def test_named_backend_is_never_replaced(opened):
    local = Renamed("local")
    rules = (BackendRule(("docker", "local")),)
    engine = opened(Renamed("docker", AWAY), local, rules=rules)
    with pytest.raises(BackendUnavailable):
        await backend_of(engine, backend="docker")
    with pytest.raises(BackendUnavailable):
        await engine.run(RunRequest("", "sh", options=SandboxOptions(backend="docker")))
    assert local.creates == 0


@pytest.mark.parametrize(
    "refusal",
    [
        UnsupportedByBackend("it cannot do this"),
        PolicyDenied("the platform forbids it"),
        IsolationRefused("it is less closed than promised"),
    ],
)
async def test_refusal_is_final(opened, refusal):
    local = Renamed("local")
    rules = (BackendRule(("docker", "local")),)
    engine = opened(Renamed("docker", refusal), local, rules=rules)
    with pytest.raises(type(refusal)):
        await engine.create(CreateRequest())
    assert local.creates == 0


async def test_ledger_that_is_away_says_nothing_about_a_backend(opened, monkeypatch):
    async def put(self, record):
        raise BackendUnavailable("the database does not answer", store="postgres")

    docker, local = Renamed("docker"), Renamed("local")
    engine = opened(docker, local, rules=(BackendRule(("docker", "local")),))
    with monkeypatch.context() as patched:
        patched.setattr(MemoryStore, "put", put)
        with pytest.raises(BackendUnavailable, match="the database does not answer") as refused:
            await engine.create(CreateRequest())
    assert refused.value.details == {"store": "postgres"}
    assert (docker.creates, local.creates) == (0, 0)


async def test_quota_of_a_provider_leads_on_and_one_of_ours_does_not(opened):
    local, docker = Renamed("local"), Renamed("docker", QuotaExceeded("the disk is full"))
    rules = (BackendRule(("docker", "local")),)
    engine = opened(docker, local, rules=rules)
    assert await backend_of(engine) == "local"
    docker.error = None
    with pytest.raises(QuotaExceeded):
        await engine.create(CreateRequest(tenant="acme"), TenantQuota(max_sessions=0))
    assert (docker.creates, local.creates) == (1, 1)
    full = Renamed("oci", QuotaExceeded("this machine's disk is full"))
    with pytest.raises(QuotaExceeded):
        await opened(full, local, rules=(BackendRule(("oci", "local")),)).create(CreateRequest())


async def test_provider_that_limits_the_rate_is_passed_over(opened):
    limited = Renamed("docker", Busy("too many requests", backend="docker"))
    engine = opened(limited, Renamed("local"), rules=(BackendRule(("docker", "local")),))
    assert await backend_of(engine) == "local"
    limited.error = Busy("another request holds the lock")
    with pytest.raises(Busy):
        await engine.create(CreateRequest())


async def test_rule_names_docker_engines_by_name_and_by_label(opened):
    west, east, local = Renamed("docker/west"), Renamed("docker/east"), Renamed("local")
    engines = {
        "docker/west": NamedBackendRules({"zone": "eu"}, max_sandboxes=1),
        "docker/east": NamedBackendRules({"zone": "eu"}),
    }
    rules = (
        BackendRule(("docker/west", "local"), tenants=("acme",)),
        BackendRule(("docker/zone=eu", "local"), only=True),
    )
    more = {"policy": {"named_backends": engines}}
    engine = opened(local, west, east, rules=rules, **more)
    assert await backend_of(engine, "acme") == "docker/west"
    # It is full.
    assert await backend_of(engine, "acme") == "local"
    assert await backend_of(engine) == "docker/east"
    assert await backend_of(engine, backend="docker/zone=eu") == "docker/east"
    with pytest.raises(PolicyDenied):
        await backend_of(engine, backend="docker/west")
    east.error = AWAY
    assert await backend_of(engine, labels={"x": "y"}) == "local"


@pytest.mark.promise("P119")
async def test_request_by_label_that_fails_takes_no_room_of_a_docker_engine(opened):
    west = Renamed("docker/west")
    engines = {west.name: NamedBackendRules({"zone": "eu"}, max_sandboxes=1)}
    more = {"policy": {"named_backends": engines}}
    engine = opened(Renamed("local"), west, rules=(), **more)
    for _ in range(3):
        with pytest.raises(InvalidRequest):
            await backend_of(engine, backend="docker/zone=eu", profile="unknown")
    west.error = AWAY
    with pytest.raises(BackendUnavailable):
        await backend_of(engine, backend="docker/zone=eu")
    west.error = None
    await engine.preflight.session(CreateRequest(SandboxOptions(backend="docker/zone=eu")))
    assert await backend_of(engine, backend="docker/zone=eu") == "docker/west"
    with pytest.raises(QuotaExceeded):
        await backend_of(engine, backend="docker/zone=eu")


@pytest.mark.promise("P119")
async def test_requests_by_label_at_once_fill_the_docker_engines_in_order(opened):
    names = ("docker/a", "docker/b", "docker/c")
    engines = {name: NamedBackendRules({"zone": "eu"}, max_sandboxes=1) for name in names}
    rules = (BackendRule(("docker/zone=eu", "local"), tenants=("acme",)),)
    more = {"policy": {"named_backends": engines}}
    engine = opened(Renamed("local"), *(Renamed(one) for one in names), rules=rules, **more)
    asked = [backend_of(engine, backend="docker/zone=eu") for _ in range(4)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert sorted(one for one in found if isinstance(one, str)) == list(names)
    [refused] = [one for one in found if not isinstance(one, str)]
    assert isinstance(refused, QuotaExceeded), refused
    for info in await engine.list():
        await engine.destroy(info.id)
    led = await asyncio.gather(*(backend_of(engine, "acme") for _ in range(4)))
    assert sorted(led) == [*names, "local"]


async def test_run_on_one_engine_of_a_backend_is_not_led_past_it_while_another_is_away(
    opened, tmp_path
):
    class Half(RunBackend):
        """Of its engines, the one for other runs is away."""

        name = "dagger"
        capabilities = replace(RunBackend.capabilities, external=True, strength=1)

        async def owned(self):
            raise BackendUnavailable("nothing listens", backend=self.name)

    engine = opened(
        Renamed("local"), Half(tmp_path), rules=(BackendRule(("dagger", "local")),), events=Events()
    )
    await engine.sweep()
    assert [one.details["backend"] for one in engine.degraded()] == ["dagger"]
    assert (await engine.run(RunRequest("true", "sh"))).backend == "dagger"


async def test_code_that_fails_is_not_run_elsewhere(opened):
    docker, local = Renamed("docker"), Renamed("local")
    engine = opened(docker, local, rules=(BackendRule(("docker", "local")),))
    result = await engine.run(RunRequest("exit 3", "sh"))
    assert (result.ok, result.exit_code, result.backend) == (False, 3, "docker")
    assert local.creates == 0


async def test_all_unavailable_is_one_error_with_the_reason_of_each_and_the_first_hint(opened):
    oci = Renamed("oci", BackendUnavailable("no runc", hint="install it"))
    full = Renamed("kubernetes", QuotaExceeded("its disk is full", hint="free space"))
    backends = Renamed("docker", AWAY), full, oci
    rules = (BackendRule(tuple(one.name for one in backends)),)
    engine = opened(*backends, rules=rules)
    for asked in (engine.create(CreateRequest()), engine.run(RunRequest("", "sh"))):
        with pytest.raises(BackendUnavailable) as refused:
            await asked
        assert refused.value.message == (
            "no backend of policy.backends[0] is available: docker: no engine answers; "
            "kubernetes: its disk is full; oci: no runc"
        )
        assert refused.value.hint == "start it"
        assert refused.value.details == {
            "backend": "docker",
            "rule": "policy.backends[0]",
            "tried": ["docker: no engine answers", "kubernetes: its disk is full", "oci: no runc"],
        }
    assert await engine.list(all=True) == []


@pytest.mark.parametrize("last", [UnsupportedByBackend, IsolationRefused])
async def test_later_backend_that_refuses_is_named_with_the_one_that_is_unavailable(opened, last):
    refusing = Renamed("oci", last("no such thing here", hint="do without"))
    engine = opened(Renamed("docker", AWAY), refusing, rules=(BackendRule(("docker", "oci")),))
    with pytest.raises(SandkastenError) as refused:
        await engine.create(CreateRequest())
    # What is wrong with this machine is more than an engine that is away.
    broken = last is IsolationRefused
    assert type(refused.value) is (IsolationRefused if broken else BackendUnavailable)
    assert refused.value.hint == ("do without" if broken else "start it")
    assert refused.value.details["tried"] == [
        "docker: no engine answers",
        "oci: no such thing here",
    ]


async def test_notes_for_the_operator_stay_with_the_error_of_a_list(opened):
    away = BackendUnavailable("it does not answer", hint="start it")
    away.add_note("it is at tcp://192.0.2.7:2376")

    class Noted(Renamed):
        async def create(self, sandbox_id, spec):
            raise away

    oci = Renamed("oci", BackendUnavailable("no runc"))
    engine = opened(Noted("docker"), oci, rules=(BackendRule(("docker", "oci")),))
    with pytest.raises(BackendUnavailable) as refused:
        await engine.create(CreateRequest())
    assert "192.0.2.7" not in f"{refused.value} {refused.value.details}"
    assert "docker: it is at tcp://192.0.2.7:2376" in refused.value.operator_message


async def test_session_key_finds_its_session_wherever_it_was_made(opened):
    docker = Renamed("docker", AWAY)
    engine = opened(docker, Renamed("local"), rules=(BackendRule(("docker", "local")),))
    made = await engine.create(CreateRequest(session_key="k"))
    docker.error = None
    for options in (
        SandboxOptions(),
        SandboxOptions(image="host"),
        SandboxOptions(isolation="standard", image="host"),
    ):
        again = await engine.create(CreateRequest(options, session_key="k"))
        assert (again.id, again.created, again.backend) == (made.id, False, "local")
    await engine.destroy(made.id)
    assert (await engine.create(CreateRequest(session_key="k"))).backend == "docker"


async def test_named_workspace_does_not_follow_to_another_place(opened, tmp_path):
    from sandkasten_runtime.linux.storage.workspace_directory import WorkspaceDirectory

    local = Renamed("local")
    port = WorkspaceDirectory(tmp_path / "workspaces")
    away = Renamed("docker", AWAY)
    engine = opened(away, local, rules=(BackendRule(("docker", "local")),), workspaces=port)
    with pytest.raises(BackendUnavailable, match="no engine answers"):
        await engine.create(CreateRequest(SandboxOptions(workspace_id="w")))
    assert local.creates == 0


async def test_rule_with_only_refuses_other_backends(opened):
    rules = (BackendRule(("oci", "docker"), tenants=("acme",), only=True), BackendRule(("local",)))
    names = ("local", "oci", "docker", "gvisor")
    engine = opened(*(Renamed(one) for one in names), rules=rules)
    assert await backend_of(engine, "acme") == "oci"
    assert await backend_of(engine, "acme", backend="docker") == "docker"
    for asked in ({"backend": "local"}, {"isolation": "gvisor"}, {"isolation": "strongest"}):
        with pytest.raises(PolicyDenied) as refused:
            await backend_of(engine, "acme", **asked)
        assert refused.value.details["rule"] == "policy.backends[0]"
    assert await backend_of(engine, "beta", backend="oci") == "oci"


async def test_image_id_without_a_known_name_does_not_avoid_a_rule_about_names(opened):
    rules = (BackendRule(("oci",), images=("ml/*",), only=True),)
    engine = opened(Renamed("local"), Renamed("oci"), rules=rules)
    for name in ("sha256:" + "0" * 64, "0123456789abcdef"):
        for backend in (None, "local", "oci"):
            with pytest.raises(PolicyDenied, match="use the name of the image"):
                await backend_of(engine, image=name, backend=backend)


async def test_step_of_a_build_does_not_run_on_a_backend_that_a_rule_forbids(opened):
    async def built(rules: tuple[BackendRule, ...]) -> None:
        engine = opened(Renamed("local"), Renamed("oci"), rules=rules)
        async with engine.bench.run(
            Image("0123456789abcdef"),
            ("true",),
            cwd="/",
            env={},
            network=engine.bench.network(None),
            pip=(),
            on_line=print,
        ):
            pass

    only = BackendRule(("oci",), only=True)
    with pytest.raises(PolicyDenied) as refused:
        await built((only,))
    assert refused.value.details == {"rule": "policy.backends[0]", "backend": "local"}
    assert "{label: {sandkasten.build: step}, use: local}" in refused.value.hint
    allowed = BackendRule(("local",), labels={"sandkasten.build": "step"})
    # The backend is allowed, and cannot have the profile of a step here.
    for rules in ((), (BackendRule(("oci",)),), (allowed, only)):
        with pytest.raises(UnsupportedByBackend, match="profile dev"):
            await built(rules)


async def test_warm_pool_keeps_its_kinds_on_the_backend_of_their_rule(opened):
    from sandkasten.model.pool.pool_kinds import parse_pool_kind

    rules = (BackendRule(("oci",), images=("host",)),)
    pool = PoolRules(kinds=(parse_pool_kind("host"),))
    engine = opened(Renamed("local"), Renamed("oci"), rules=rules, pool=pool)
    await engine.recover()
    claimed = await engine.create(CreateRequest(SandboxOptions(image="host")))
    assert (claimed.backend, claimed.acquire_source) == ("oci", "pool")


async def test_preflight_checks_on_the_backend_that_the_request_gets(opened):
    engine = opened(Renamed("gvisor", AWAY), Renamed("local"), rules=(BackendRule(("local",)),))
    await engine.preflight.session(CreateRequest())
    await engine.preflight.run(RunRequest("", "sh"))
    assert await engine.preflight.image(SandboxOptions())
