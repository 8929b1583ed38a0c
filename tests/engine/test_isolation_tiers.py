"""Which backend a request gets. Every tier here is the unisolated backend, renamed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import BackendUnavailable, Conflict, InvalidRequest, PolicyDenied
from sandkasten.model.backends.capabilities import Closed
from sandkasten.model.optional_extras import SECTION_EXTRAS
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.policy import Policy
from sandkasten.model.sandbox.readiness import Readiness, Requirement
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.engine import Engine
from sandkasten_runtime.images.archives.archive_import import Import, import_file
from sandkasten_runtime.images.catalog import Images
from sandkasten_runtime.images.host_image import HostImages
from sandkasten_runtime.images.layers.image_store import LayerStore
from tests.imagekit import docker_members, sketch, write_tar
from tests.store.memory_store import MemoryStore
from tests.unisolated.backend import UnisolatedBackend, standing_for

if TYPE_CHECKING:
    from sandkasten.model.images.resolved_image import Image
    from sandkasten.ports import ImageSource

pytestmark = pytest.mark.anyio

BROKEN = Readiness(ready=False, reason="runsc is too old", remedy="install a newer runsc")


class Named(UnisolatedBackend):
    """The unisolated backend under another name, ready or not."""

    def __init__(self, name: str, broken: Readiness | None = None) -> None:
        super().__init__()
        self.name = name
        self.capabilities = standing_for(name)
        self.broken = broken
        self.probes = 0

    async def probe(self) -> Readiness:
        self.probes += 1
        return self.broken or await super().probe()


@pytest.fixture
async def opened():
    engines: list[Engine] = []

    def open_engine(
        *backends: Named,
        policy: Policy | None = None,
        images: ImageSource | None = None,
        library: Images | None = None,
    ) -> Engine:
        engine = Engine(
            backends={one.name: one for one in backends},
            default_backend=backends[0].name,
            store=MemoryStore(),
            images=images or library or HostImages(),
            library=library,
            policy=policy or Policy(),
            clock=SystemClock(),
        )
        engines.append(engine)
        return engine

    yield open_engine
    for engine in engines:
        for info in await engine.list():
            await engine.destroy(info.id)
        await engine.aclose()


async def backend_of(engine: Engine, **asked: Any) -> str:
    return (await engine.create(CreateRequest(SandboxOptions(**asked)))).backend


async def test_each_isolation_is_a_backend(opened):
    engine = opened(Named("local"), Named("oci"), Named("gvisor"))
    assert await backend_of(engine) == "local"
    assert await backend_of(engine, isolation="standard") == "local"
    assert await backend_of(engine, isolation="gvisor") == "gvisor"
    assert await backend_of(engine, isolation="strongest") == "gvisor"
    assert await backend_of(engine, backend="oci") == "oci"
    assert await backend_of(engine, backend="oci", isolation="standard") == "oci"
    assert await backend_of(engine, backend="gvisor", isolation="gvisor") == "gvisor"


async def test_strongest_selects_the_strongest_ready_backend_and_names_it(opened):
    engine = opened(Named("oci"), Named("local"), Named("gvisor", BROKEN))
    assert await backend_of(engine, isolation="strongest") == "oci"
    assert await backend_of(opened(Named("unisolated")), isolation="strongest") == "unisolated"


@pytest.mark.promise("P05")
async def test_gvisor_that_is_not_ready_is_refused_with_the_reason(opened):
    engine = opened(Named("local"), Named("gvisor", BROKEN))
    for asked in (
        CreateRequest(SandboxOptions(isolation="gvisor")),
        CreateRequest(SandboxOptions(backend="gvisor")),
    ):
        with pytest.raises(BackendUnavailable) as refused:
            await engine.create(asked)
        assert refused.value.message == "backend gvisor is not ready: runsc is too old"
        assert refused.value.hint == "install a newer runsc"
    assert await engine.list() == []


async def test_missing_gvisor_is_refused(opened):
    with pytest.raises(BackendUnavailable, match="gvisor is not installed here"):
        await opened(Named("local")).create(CreateRequest(SandboxOptions(isolation="gvisor")))


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        (section.removeprefix("backends."), extra)
        for section, extra in SECTION_EXTRAS.items()
        if section.startswith("backends.")
    ],
)
async def test_backend_of_a_missing_plugin_names_the_extra_that_installs_it(opened, name, extra):
    for backend in (name, f"{name}/other"):
        with pytest.raises(BackendUnavailable) as error:
            await opened(Named("local")).create(CreateRequest(SandboxOptions(backend=backend)))
        assert error.value.details == {"backend": backend, "extra": extra}


async def test_when_no_backend_is_ready_the_reason_of_the_strongest_is_given(opened):
    engine = opened(Named("local", Readiness(False, "no bwrap", "get it")), Named("gvisor", BROKEN))
    with pytest.raises(BackendUnavailable, match="runsc is too old"):
        await engine.create(CreateRequest(SandboxOptions(isolation="strongest")))


@pytest.mark.parametrize(
    ("backend", "isolation"),
    [("local", "gvisor"), ("gvisor", "standard"), ("local", "strongest"), ("oci", "gvisor")],
)
async def test_a_backend_that_contradicts_the_isolation_is_refused(opened, backend, isolation):
    engine = opened(Named("local"), Named("oci"), Named("gvisor"))
    with pytest.raises(InvalidRequest, match="contradict"):
        await engine.create(CreateRequest(SandboxOptions(backend=backend, isolation=isolation)))


async def test_a_misspelt_isolation_is_refused_with_the_nearest_name(opened):
    with pytest.raises(InvalidRequest) as refused:
        await opened(Named("local")).create(CreateRequest(SandboxOptions(isolation="gvizor")))
    assert "gvisor" in refused.value.hint


async def test_the_operator_chooses_the_default_isolation(opened):
    backends = (Named("local"), Named("gvisor"))
    assert await backend_of(opened(*backends, policy=Policy(isolation="gvisor"))) == "gvisor"
    assert await backend_of(opened(*backends, policy=Policy(isolation="strongest"))) == "gvisor"
    policy = Policy(isolation_minimum="gvisor")
    assert await backend_of(opened(*backends, policy=policy)) == "gvisor"


@pytest.mark.promise("P05")
async def test_less_than_the_operators_minimum_is_denied(opened):
    engine = opened(Named("local"), Named("gvisor"), policy=Policy(isolation_minimum="gvisor"))
    for asked in (
        CreateRequest(SandboxOptions(isolation="standard")),
        CreateRequest(SandboxOptions(backend="local")),
    ):
        with pytest.raises(PolicyDenied) as refused:
            await engine.create(asked)
        assert refused.value.details["rule"] == "policy.isolation_minimum"
    assert await backend_of(engine, isolation="strongest") == "gvisor"
    with pytest.raises(PolicyDenied):
        await engine.run(RunRequest("1", options=SandboxOptions(isolation="standard")))


@pytest.mark.promise("P05")
async def test_strongest_does_not_fall_below_the_minimum(opened):
    policy = Policy(isolation_minimum="gvisor")
    engine = opened(Named("local"), Named("gvisor", BROKEN), policy=policy)
    with pytest.raises(BackendUnavailable, match="runsc is too old"):
        await engine.create(CreateRequest(SandboxOptions(isolation="strongest")))
    with pytest.raises(BackendUnavailable, match="required isolation"):
        await opened(Named("local"), policy=policy).create(
            CreateRequest(SandboxOptions(isolation="strongest"))
        )


async def test_an_unexamined_backend_counts_as_no_isolation(opened):
    engine = opened(Named("unisolated"), policy=Policy(isolation_minimum="standard"))
    with pytest.raises(PolicyDenied):
        await engine.create(CreateRequest())


async def test_a_key_of_another_isolation_is_a_conflict(opened):
    engine = opened(Named("local"), Named("gvisor"))
    await engine.create(CreateRequest(session_key="k"))
    with pytest.raises(Conflict) as error:
        await engine.create(CreateRequest(SandboxOptions(isolation="gvisor"), session_key="k"))
    details = error.value.details
    assert details["fields"] == ["backend"]
    assert (details["requested"], details["session"]) == (["gvisor"], ["local"])


async def test_a_ready_tier_is_examined_once_and_the_default_not_at_all(opened):
    local, gvisor = Named("local"), Named("gvisor")
    engine = opened(local, gvisor)
    for _ in range(3):
        await engine.create(CreateRequest())
        await engine.create(CreateRequest(SandboxOptions(isolation="gvisor")))
    assert (local.probes, gvisor.probes) == (0, 1)


async def test_a_repaired_backend_is_noticed(opened):
    local, gvisor = Named("local"), Named("gvisor", BROKEN)
    engine = opened(local, gvisor)
    with pytest.raises(BackendUnavailable):
        await engine.create(CreateRequest(SandboxOptions(isolation="gvisor")))
    gvisor.broken = None
    tiers = {one.name: one for one in await engine.tiers(measure=False)}
    assert tiers["gvisor"].ready


async def test_the_survey_shows_every_tier_with_reason_remedy_and_time(opened):
    engine = opened(Named("local"), Named("gvisor", BROKEN))
    tiers = await engine.tiers()
    assert [one.name for one in tiers] == [
        "local",
        "local on an image",
        "local, dev profile",
        "oci",
        "gvisor",
        "docker",
    ]
    first, on_image, dev, oci, gvisor, docker = tiers
    assert (first.ready, first.default, first.image, first.tried) == (True, True, "host", True)
    assert first.create_ms is not None
    assert first.create_ms >= 0
    for one in (on_image, dev, oci, gvisor, docker):
        assert not one.ready
        assert one.reason
        assert one.remedy
        assert (one.create_ms, one.default) == (None, False)
    assert oci.remedy == "open it with oci among its backends"
    assert docker.remedy == "pip install 'sandkasten-runtime[docker]'"
    assert gvisor.reason == "runsc is too old"
    assert await engine.list() == []


async def test_the_survey_tries_any_image_of_the_store(opened, tmp_path):
    layers = LayerStore(tmp_path / "images")
    library = Images(layers)

    def bring(name: str, **changes: Any) -> None:
        path = write_tar(tmp_path / "archive", docker_members(sketch(**changes)))
        import_file(layers, Import(path, name=name))

    engine = opened(Named("local"), library=library)
    empty = {one.name: one for one in await engine.tiers(measure=False)}["local on an image"]
    assert (empty.ready, empty.reason) == (False, "the store has no images")

    bring("elsewhere", architecture="s390x")
    foreign = {one.name: one for one in await engine.tiers(measure=False)}["local on an image"]
    assert not foreign.ready
    assert foreign.reason.startswith("image elsewhere:latest is made for linux/s390x")

    bring("my-own")
    tiers = {one.name: one for one in await engine.tiers(measure=False)}
    assert (tiers["local on an image"].ready, tiers["local on an image"].image) == (
        True,
        "my-own:latest",
    )


async def test_the_survey_pulls_no_image_that_no_request_named(opened):
    fetched: set[str] = set()

    class Pulling(HostImages):
        async def resolve(self, name: str, *, fetch: bool = True) -> Image:
            fetched.update([name] if fetch else [])
            return await super().resolve(name, fetch=fetch)

    await opened(Named("local"), images=Pulling()).tiers(measure=False)
    assert fetched == {"linux"}  # The image of a request without options.


OLD = Requirement("runc release", False, "1.1.5 has CVE-2025-31133", "update it", required=False)


async def test_the_survey_repeats_the_warnings_of_every_tier(opened):
    good = Requirement("cgroups", True, "v2")
    engine = opened(Named("local"), Named("oci", Readiness(True, requirements=(good, OLD))))
    tiers = {one.name: one for one in await engine.tiers(measure=False)}
    assert (tiers["oci"].ready, tiers["oci"].warnings) == (True, (OLD,))
    assert tiers["local"].warnings == ()


async def test_a_warning_of_a_cell_is_one_of_its_sandbox(opened):
    class Warned(Named):
        async def create(self, sandbox_id, spec):
            cell = await super().create(sandbox_id, spec)
            cell.warnings = ("runc 1.1.5 has CVE-2025-31133",)  # type: ignore[attr-defined]
            return cell

    engine = opened(Warned("oci"))
    info = await engine.create(CreateRequest(SandboxOptions()))
    assert "runc 1.1.5 has CVE-2025-31133" in info.warnings
    assert "runc 1.1.5 has CVE-2025-31133" in (await engine.get(info.id)).warnings


GONE = Readiness(False, "no engine answers at unix:///run/docker.sock", "start dockerd")


@pytest.mark.promise("P05")
async def test_strongest_never_falls_to_an_engine_nor_from_one(opened):
    engine = opened(Named("gvisor", BROKEN), Named("docker"), Named("oci"))
    assert await backend_of(engine, isolation="strongest") == "oci"
    with pytest.raises(BackendUnavailable, match="runsc is too old"):
        await opened(Named("gvisor", BROKEN), Named("docker")).create(
            CreateRequest(SandboxOptions(isolation="strongest"))
        )
    docker = Named("docker", GONE)
    engine = opened(docker, Named("local"), Named("oci"), Named("gvisor", BROKEN))
    with pytest.raises(BackendUnavailable, match="runsc is too old"):
        await engine.create(CreateRequest(SandboxOptions(isolation="strongest")))
    docker.broken = None
    assert await backend_of(engine, isolation="strongest") == "docker"
    assert await backend_of(engine, backend="local") == "local"
    stronger = opened(Named("docker"), Named("local"), Named("gvisor"))
    assert await backend_of(stronger, isolation="strongest") == "gvisor"


@pytest.mark.promise("P05")
@pytest.mark.parametrize("default", ["docker", "kubernetes"])
async def test_strongest_moves_no_code_to_another_engine_or_provider_if_the_default_is_away(
    opened, default
):
    others = [
        Named(one)
        for one in ("docker", "kubernetes", "fly", "e2b", "modal", "docker/west", "local")
        if one != default
    ]
    engine = opened(Named(default, GONE), *others)
    with pytest.raises(BackendUnavailable, match=f"{default} is not ready: no engine answers"):
        await engine.create(CreateRequest(SandboxOptions(isolation="strongest")))
    # What may not be used is not asked either.
    assert [one.probes for one in others] == [0] * len(others)
    demanded = opened(Named(default, GONE), *others, policy=Policy(isolation="strongest"))
    with pytest.raises(BackendUnavailable, match="no engine answers"):
        await demanded.create(CreateRequest())
    provider = opened(Named("fly"), Named("e2b"), Named("docker"))
    assert await backend_of(provider, isolation="strongest") == "fly"


@pytest.mark.promise("P05")
async def test_strongest_is_stronger_than_a_default_that_the_operator_has_not_enabled(opened):
    fly = Named("fly", Readiness(False, "backend fly is not enabled", "enable it"))
    closed = Closed("backend fly is not enabled", "enable it")
    fly.capabilities = replace(fly.capabilities, closed=closed)
    engine = opened(fly, Named("local"), Named("gvisor"))
    assert await backend_of(engine, isolation="strongest") == "gvisor"


async def test_the_readiness_of_an_engine_is_not_cached(opened):
    docker = Named("docker")
    engine = opened(docker)
    assert await backend_of(engine, isolation="strongest") == "docker"
    docker.broken = GONE
    with pytest.raises(BackendUnavailable, match="no engine answers") as refused:
        await engine.create(CreateRequest(SandboxOptions(isolation="strongest")))
    assert refused.value.hint == "start dockerd"


async def test_an_engine_is_probed_and_tried_only_where_it_is_the_default(opened):
    tiers = {one.name: one for one in await opened(Named("local"), Named("docker", GONE)).tiers()}
    assert (tiers["docker"].reason, tiers["docker"].remedy) == (GONE.reason, GONE.remedy)
    docker = Named("docker")
    tiers = {one.name: one for one in await opened(Named("local"), docker).tiers()}
    assert (tiers["docker"].ready, tiers["docker"].tried, docker.probes) == (True, False, 1)
    assert await docker.owned() == ()


async def test_a_survey_does_not_wait_forever(opened, monkeypatch):
    monkeypatch.setattr("sandkasten_runtime.engine.placement.backend_survey._PROBE_TIMEOUT_S", 0.05)
    docker = Named("docker")

    async def hang() -> Readiness:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(docker, "probe", hang)
    tiers = {one.name: one for one in await opened(Named("local"), docker).tiers(measure=False)}
    assert tiers["local"].ready
    assert "did not answer" in tiers["docker"].reason


async def test_a_survey_without_measuring_creates_nothing(opened):
    engine = opened(Named("local"))
    (first, *_) = await engine.tiers(measure=False)
    assert (first.ready, first.tried, first.create_ms) == (True, False, None)
