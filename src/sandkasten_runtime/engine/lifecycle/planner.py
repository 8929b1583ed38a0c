"""Turn a request into a plan: every rule is applied here, before anything is made.

Raises the class of `errors` that names the rule. Reads nothing but the image source and the sources
of host mounts; requested packages are installed here if they are missing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.errors import (
    Busy,
    Conflict,
    ImageNotFound,
    PolicyDenied,
    RegistryUnavailable,
    SandkastenError,
    UnsupportedByBackend,
    UntrustedImage,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.tenancy import DEFAULT_TENANT, checked_tenant, scoped, unscoped
from sandkasten.model.backends.named_backends import settings_section
from sandkasten.model.environment import checked_environment, checked_labels
from sandkasten.model.images.pull_rules import may_pull
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.optional_extras import install_command
from sandkasten.model.sandbox.cell_spec import CellSpec, base_environment
from sandkasten.model.sandbox.gpus import (
    check_gpus,
    check_gpus_on,
    requested_gpus,
    without_gpus,
)
from sandkasten.model.sandbox.host_mounts import Mounted, check_mounts_on, choose_mounts, touching
from sandkasten.model.sandbox.inspection import check_environment, refuse_inspection
from sandkasten.model.sandbox.limit_names import parse_limits
from sandkasten.model.sandbox.limits import MIB
from sandkasten.model.sandbox.network_policy import (
    CLOSED,
    NetworkPolicy,
    default_network,
    network_for,
    unreachable_rules,
    unsupported_network,
)
from sandkasten.model.sandbox.oneshot_values import check_run_only
from sandkasten.model.sandbox.package_sets import (
    MOUNT_PREFIX,
    Packages,
    checked_packages,
    environment,
)
from sandkasten.model.sandbox.policy import (
    Lease,
    Policy,
    check_enabled,
    check_profile_on,
    checked_hostname,
    checked_profile,
    checked_session_key,
    lease_for,
)
from sandkasten.model.sandbox.sandbox_values import wanted_images
from sandkasten.model.sandbox.session_joins import (
    JOIN_REFUSED,
    JoinTerms,
    SessionShape,
    Variables,
    as_details,
    differences,
    variables,
)
from sandkasten.model.sandbox.snapshot import other_image
from sandkasten.model.sandbox.workspace import WorkspaceRequest, plain_name, workspace_request
from sandkasten.ports import KeepsImages, RefusesNetworks, Watchful, backend_part
from sandkasten_runtime.engine.placement.backend_choice import asked_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.sandbox.cell_spec import HostMount
    from sandkasten.model.sandbox.host_mounts import MountRule
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.limits import Limits
    from sandkasten.model.sandbox.package_sets import PackageSet
    from sandkasten.model.sandbox.sandbox_values import CreateRequest
    from sandkasten.model.sandbox.session_joins import Difference
    from sandkasten.model.sandbox.snapshot import StoredSnapshot
    from sandkasten.ports import Backend, HostMounts, ImageSource, Provisioner, Sites
    from sandkasten_runtime.engine.placement.backend_choice import BackendChoice, Chosen
    from sandkasten_runtime.engine.storage.tenant_secrets import TenantSecrets


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    """A checked request: nothing was made yet, and nothing in it can be refused any more."""

    backend: Backend
    spec: CellSpec
    lease: Lease
    labels: dict[str, str]
    env: Mapping[str, str]
    """The variables that the request names."""
    session_key: str | None
    warnings: tuple[str, ...]
    workspace: WorkspaceRequest | None = None
    mounts: tuple[Mounted, ...] = ()
    tenant: str = DEFAULT_TENANT
    key_id: str | None = None
    packages: Packages = Packages()
    origin: StoredSnapshot | None = None
    snapshot: str | None = None
    """Its id, for the row; of a fork, that of the snapshot that the source was created from."""
    runtime: str | None = None
    """The runtime of a one-shot, for which the warm pool may have started an interpreter."""


class Planner:
    def __init__(
        self,
        choice: BackendChoice,
        images: ImageSource,
        policy: Policy,
        secrets: TenantSecrets,
        host_mounts: HostMounts | None = None,
        packages: Provisioner | None = None,
    ) -> None:
        self._secrets = secrets
        self.choice = choice
        self._images = images
        self._policy = policy
        self._host_mounts = host_mounts
        self._packages = packages

    async def plan(
        self,
        request: CreateRequest,
        *,
        image: Image | None = None,
        sites: Sites | None = None,
        joins: Record | None = None,
        chosen: Chosen | None = None,
        once: bool = False,
    ) -> SandboxPlan:
        """Check everything that can be checked before anything is made.

        `image` is one that was resolved already.
        `sites` is where packages are installed; without it a request for packages is refused.
        `joins` is the existing session that the request leads to: its image is not looked for.
        `chosen` has the backend of a client's request; without it, the rules of `policy.backends`
        do not apply.
        `once`: for one run, which is all that some backends can do.
        """
        check_enabled(self._policy)
        options = request.options
        tenant = checked_tenant(request.tenant)
        network = self._network(request)
        profile = checked_profile(options.profile)
        hostname = checked_hostname(options.hostname)
        env = checked_environment(options.env)
        gpus = requested_gpus(options)
        if gpus is not None:
            check_gpus(gpus, self._policy.gpus)
        requested = without_gpus(options.limits)
        limits = parse_limits(requested, self._policy.limits, self._policy.ceiling)
        lease = lease_for(options, self._policy)
        labels = checked_labels(options.labels)
        workspace = workspace_request(request, self._policy.workspaces)
        rules = choose_mounts(options.mounts, self._policy.mounts, tenant)
        packages = checked_packages(options.pip_packages, options.npm_packages)
        if packages and self._packages is None:
            raise UnsupportedByBackend(
                "pip_packages and npm_packages require the extra build, which is not installed",
                hint=f"{install_command('build')}, or use an image that has the packages",
            )
        if chosen is None:
            chosen = await self.choice.without_rules(request)
        backend = chosen.backend
        can = backend.capabilities
        check_mounts_on(rules, backend.name, can)
        if can.run_once:
            check_run_only(backend.name, once=once, profile=profile, workspace=workspace)
        refusal = await _network_refusal(backend, network)
        if refusal is not None:
            if options.network is not None or network.closed:
                raise refusal
            network = CLOSED
            if can.run_once and await _network_refusal(backend, network):
                raise refusal
        inspection = await self._secrets.inspection(network, tenant)
        if inspection is not None:
            check_environment(inspection.secrets, env)
            if not can.features.secrets:
                raise refuse_inspection(backend.name)
        if gpus is not None:
            check_gpus_on(backend.name, can)
        if image is None and joins is not None:
            # Packages belong to an image, so they need its layers.
            image = await self._resolved(backend, joins.image) if packages else _image_of(joins)
        origin = request.origin
        if image is None and origin is not None:
            if not can.copies_files:
                raise UnsupportedByBackend(
                    f"backend {backend.name} cannot create a sandbox from a snapshot",
                    hint=f"leave backend out, or request backend {origin.backend}",
                    backend=backend.name,
                )
            image = await self._image_of(origin, backend, options.image or origin.image)
        if image is None:
            image = await self._image(backend, request)
        check_profile_on(profile, image)
        spec = CellSpec(
            image=image,
            limits=limits,
            profile=profile,
            hostname=hostname,
            env={**self._policy.env, **env},
            network=network,
            ceiling=self._policy.network,
            inspection=inspection,
            files=None if origin is None else origin.files,
            mounts=await self._mounts(rules),
            gpus=gpus,
            reserve_disk=self._policy.disk.reserve == "all",
            min_free_bytes=self._policy.disk.min_free_bytes,
            writable_root=not self._policy.readonly_rootfs and image.kind != "host",
            place=can.place(tenant),
        )
        # Last, because it may take minutes: what can be refused was refused by now.
        sets: Sequence[PackageSet] = ()
        if packages:
            site = backend.name
            if can.run_once:
                site = "local"
                _check_in_store(image, backend.name)
            sets = await self._provided(packages, rules, spec, site, sites, tenant)
        if sets:
            spec = _with_packages(spec, sets)
            if can.own_images:
                with asked_of(backend.name):
                    keeper = await backend_part(backend, KeepsImages)
                    await keeper.bring_contents(spec.mounts)
        warnings = (
            *chosen.warnings,
            image.warning,
            self._root_warning(image),
            "" if can.external else _memory_warning(spec.limits),
            f"{refusal.message}; defaults.network_mode does not apply" if refusal else "",
            *unreachable_rules(network, self._policy.network),
        )
        return SandboxPlan(
            backend=backend,
            spec=spec,
            lease=lease,
            labels=labels,
            env=env,
            session_key=session_key_of(request),
            warnings=tuple(filter(None, warnings)),
            workspace=workspace,
            mounts=(
                *(Mounted(rule.name, rule.target, rule.mode, rule.below) for rule in rules),
                *(
                    Mounted(MOUNT_PREFIX + package_set.key, package_set.mount.target)
                    for package_set in sets
                ),
            ),
            tenant=tenant,
            key_id=request.key_id,
            packages=packages,
            origin=origin,
            snapshot=options.snapshot,
        )

    async def _image_of(self, origin: StoredSnapshot, backend: Backend, name: str) -> Image:
        """Return the image that a snapshot was taken with. `name` is that of the request."""
        try:
            image = await self._resolved(backend, name, fetch=False)
        except ImageNotFound:
            if name != origin.image:
                raise
        else:
            if image.id == origin.image_id and (image.id or image.name == origin.image):
                return image
            if name != origin.image:
                raise other_image(origin, name)
        # The name is gone, or means another content now.
        try:
            image = await self._resolved(backend, origin.image_id or origin.image, fetch=False)
        except (ImageNotFound, PolicyDenied) as exc:
            raise ImageNotFound(
                f"the image of snapshot {origin.id} was removed or replaced: {origin.image} "
                f"{origin.image_id}",
                hint="bring that image into the store again (sandkasten image import or pull)",
                image=origin.image,
                snapshot=origin.id,
            ) from exc
        return replace(image, name=origin.image)

    async def shape(self, request: CreateRequest) -> SessionShape:
        """Return what a session of this request would have. Nothing is made, fetched or installed.

        Raises what `plan` would raise for the parts that it reads.
        """
        options = request.options
        gpus = requested_gpus(options)
        packages = checked_packages(options.pip_packages, options.npm_packages)
        requested = without_gpus(options.limits)
        lease = lease_for(options, self._policy)
        backend = await self.choice.first(request)
        return SessionShape(
            image=await self._image_name(backend, options.image),
            backend=backend.name,
            profile=checked_profile(options.profile),
            network=self._network(request).public(),
            limits=parse_limits(requested, self._policy.limits, self._policy.ceiling),
            hostname=checked_hostname(options.hostname),
            idle_timeout_s=lease.idle_timeout_s,
            lifetime_s=lease.lifetime_s,
            pip_packages=packages.pip,
            npm_packages=packages.npm,
            gpus=None if gpus is None else str(gpus),
        )

    async def _image_name(self, backend: Backend, name: str | None) -> str | None:
        """Return the name of the image that a request gets; None if that is not known yet."""
        if name is None:
            return None
        try:
            there = await self._images.look_up(name)
            if there.image is None and there.fetchable:
                return there.names[-1]
            return (await self._resolved(backend, name, fetch=False)).name
        except SandkastenError:
            # A run fails for this reason before it joins a session.
            return None

    def permitted_network(self, value: object) -> NetworkPolicy:
        """Return the network that the operator gets for a value. Raise InvalidRequest or
        PolicyDenied.
        """
        return network_for(value, self._policy.network, operator=True)

    def _network(self, request: CreateRequest) -> NetworkPolicy:
        ceiling, operator = self._policy.network, request.key_id is None
        if request.options.network is None and self._policy.network_default:
            return default_network(ceiling, operator=operator)
        return network_for(request.options.network, ceiling, operator=operator)

    def _root_warning(self, image: Image) -> str:
        if self._policy.readonly_rootfs or image.kind != "host":
            return ""
        return "the root of the host image is read-only; defaults.readonly_rootfs is for images"

    async def check_present(self, plan: SandboxPlan) -> None:
        """Raise ImageNotFound if the image was removed since it was resolved."""
        image = plan.spec.image
        if isinstance(self._images, Watchful) and not await self._images.present(image):
            raise ImageNotFound(
                f"image {image.name} was removed while a sandbox was being made of it",
                hint="import it again, or use another one",
                image=image.name,
            )
        for key in _keys(plan.mounts):
            if self._packages is not None and not await self._packages.present(key):
                raise Busy(
                    "the packages were removed while a sandbox was being made with them",
                    hint="retry: they are installed again",
                )

    async def _provided(
        self,
        packages: Packages,
        rules: Sequence[MountRule],
        spec: CellSpec,
        backend: str,
        sites: Sites | None,
        tenant: str,
    ) -> Sequence[PackageSet]:
        if self._packages is None or sites is None:
            raise UnsupportedByBackend(
                "packages cannot be installed here", hint="use an image that has them"
            )
        sets = await self._packages.provide(packages, spec.image, backend, sites, tenant)
        for package_set in sets:
            for rule in rules:
                if touching(rule.target, package_set.mount.target):
                    raise Conflict(
                        f"mount {rule.name} lies at {rule.target}, where packages are shown",
                        hint="choose another target in policy.mounts",
                        mount=rule.name,
                    )
        return sets

    async def _mounts(self, rules: Sequence[MountRule]) -> tuple[HostMount, ...]:
        if not rules:
            return ()
        if self._host_mounts is None:
            raise UnsupportedByBackend(
                "host mounts are not supported here", hint="remove them from policy.mounts"
            )
        return tuple(await self._host_mounts.resolve(rules))

    async def find_image(self, request: CreateRequest) -> bool:
        """Return whether the image of a request is here; False if it has to be fetched first.

        Fetches nothing. Raises what `plan` would raise if nothing can be fetched, or if the profile
        does not go with the image.
        """
        backend = await self.choice.first(request)
        try:
            image = await self._image(backend, request, fetch=False)
            check_profile_on(checked_profile(request.options.profile), image)
        except ImageNotFound:
            for name in wanted_images(request, self._policy.default_image):
                with suppress(PolicyDenied):
                    there = await self._images.look_up(name)
                    if there.fetchable:
                        return False
                    can = backend.capabilities
                    if can.own_images and may_pull(can.pulls, in_full=there.in_full):
                        return False
            raise
        return True

    async def _image(
        self, backend: Backend, request: CreateRequest, *, fetch: bool = True
    ) -> Image:
        """Return the image of a request, on every path and every backend."""
        name, *rest = wanted_images(request, self._policy.default_image)
        if not rest:
            return await self._resolved(backend, name, fetch=fetch)
        try:
            image = await self._resolved(backend, name, rest[0], fetch=fetch)
        except UntrustedImage:
            # Not forbidden, but perhaps replaced: another image would hide that.
            raise
        except PolicyDenied as refused:
            try:
                image = await self._resolved(backend, rest[0], fetch=fetch)
            except (PolicyDenied, UnsupportedByBackend):
                raise refused from None
        # The caller named no image, so there is nothing to warn about.
        return replace(image, warning="")

    async def _resolved(
        self, backend: Backend, name: str, instead: str | None = None, *, fetch: bool = True
    ) -> Image:
        """Resolve the image. `instead` is used where the name means the host, which some backends
        cannot show.
        """
        if backend.capabilities.own_images:
            return await self._kept(backend, name, instead, fetch=fetch)
        return await self._images.resolve(name, fetch=fetch)

    async def _kept(
        self, backend: Backend, name: str, instead: str | None, *, fetch: bool
    ) -> Image:
        """Look in the store first, then in the backend, and only then fetch into the store."""
        can, there = backend.capabilities, await self._images.look_up(name)
        if there.image is not None and there.image.kind == "host":
            if instead is not None:
                return await self._kept(backend, instead, None, fetch=fetch)
            raise UnsupportedByBackend(
                f"backend {backend.name} cannot show this machine's own /usr (image {name})",
                hint="name an image (sandkasten image ls), or use the local backend",
                image=name,
            )
        image, unreachable = there.image, None
        if image is None and not there.signed:
            try:
                pulls = fetch and may_pull(can.pulls, in_full=there.in_full)
                with asked_of(backend.name):
                    keeper = await backend_part(backend, KeepsImages)
                    image = await keeper.find_image(there.names, fetch=pulls)
            except RegistryUnavailable as exc:
                # This machine may reach what the platform cannot.
                unreachable = exc
        if image is None and fetch:
            try:
                image = (await self._images.look_up(name, fetch=True)).image
            except RegistryUnavailable as exc:
                raise unreachable or exc from exc
        if image is not None:
            if image.kind == "layers" and fetch:
                with asked_of(backend.name):
                    await (await backend_part(backend, KeepsImages)).bring_image(image)
            return image
        if unreachable is not None:
            raise unreachable
        if there.signed:
            raise ImageNotFound(
                f"image {name} is not in the store, and images of the {can.platform} are not used, "
                "because it does not check signatures",
                hint="policy.images.signatures is set; run sandkasten image pull "
                f"{there.names[-1]}",
                image=name,
            )
        sought = " or ".join(there.names)
        if can.run_once:
            raise ImageNotFound(
                f"image {name} is not in the store, and backend {backend.name} does not pull it "
                f"(looked for {sought})",
                hint="bring it into the store (sandkasten image build, import or pull), or set "
                f"backends.{backend.name}.pull: missing",
                image=name,
            )
        pull = f" ({can.pull_command} {there.names[-1]})" if can.pull_command else ""
        settings = settings_section(backend.name, can)
        raise ImageNotFound(
            f"image {name} is neither in the store nor in the {can.platform} of backend "
            f"{backend.name} (looked for {sought})",
            hint="bring it into the store (sandkasten image build, import or pull) or into the "
            f"{can.platform}{pull}, let it pull the image ({settings}.pull: missing), or name "
            "another image (default_image applies when a request names none)",
            image=name,
        )


async def _network_refusal(backend: Backend, policy: NetworkPolicy) -> UnsupportedByBackend | None:
    # A backend of sandboxes can always give none; one that only runs has its platform's network.
    can = backend.capabilities
    if policy.closed and not can.run_once:
        return None
    if not policy.closed and not can.has_network:
        return unsupported_network(backend.name)
    if not can.refuses_networks:
        return None
    with asked_of(backend.name):
        return await (await backend_part(backend, RefusesNetworks)).network_refusal(policy)


def _check_in_store(image: Image, backend: str) -> None:
    """Raise UnsupportedByBackend for packages of an image that only a backend's engine has."""
    if image.kind == "engine":
        raise UnsupportedByBackend(
            f"packages cannot be installed for image {image.name}: only the engine of backend "
            f"{backend} has it",
            hint=f"bring it into the store (sandkasten image pull {image.name}), or use an image "
            "that has them",
            image=image.name,
        )


def _with_packages(spec: CellSpec, sets: Sequence[PackageSet]) -> CellSpec:
    path = base_environment(spec)["PATH"]
    return replace(
        spec,
        env={**spec.env, **environment(sets, path, spec.env)},
        mounts=(*spec.mounts, *(package_set.mount for package_set in sets)),
    )


def session_key_of(request: CreateRequest) -> str | None:
    """Return the key under which the ledger has the session of a request."""
    key = checked_session_key(request.session_key)
    return None if key is None else scoped(checked_tenant(request.tenant), key)


def _image_of(record: Record) -> Image:
    """Return the image of an existing sandbox, without its layers."""
    if record.image == "host":
        return Image(record.image)
    return Image(record.image, "layers" if record.image_id else "engine", id=record.image_id)


def _keys(mounts: Sequence[Mounted]) -> tuple[str, ...]:
    """Return the keys of the package sets among them."""
    return tuple(
        mount.name.removeprefix(MOUNT_PREFIX)
        for mount in mounts
        if mount.name.startswith(MOUNT_PREFIX)
    )


def check_joins(record: Record, plan: SandboxPlan, terms: JoinTerms) -> None:
    """Raise Conflict if the session of a key lacks what the request requires."""
    _check(record, differences(_shape(plan, record), _session(record), terms))


def check_packages(record: Record, terms: JoinTerms) -> None:
    """Raise Conflict if the session has other packages.

    Checked first, so that nothing is installed for a refused request.
    """
    options, session = terms.options, _session(record)
    wanted = checked_packages(options.pip_packages, options.npm_packages)
    shape = replace(session, pip_packages=wanted.pip, npm_packages=wanted.npm)
    _check(record, differences(shape, session, JoinTerms(options)))


def _check(record: Record, differing: Sequence[Difference]) -> None:
    if not differing:
        return
    key = unscoped(record.session_key or "")[1]
    text = ", ".join(
        f"{difference.field} {difference.has}, not {difference.wanted}" for difference in differing
    )
    raise Conflict(
        f"session key {key!r} names a sandbox with {text}",
        hint="use another key, leave these options out, or destroy that sandbox first",
        reason=JOIN_REFUSED,
        sandbox_id=record.id,
        session_key=key,
        **as_details(differing),
    )


def _shape(plan: SandboxPlan, record: Record) -> SessionShape:
    """Return what the plan would make, to be compared with that session."""
    spec = plan.spec
    return SessionShape(
        image=spec.image.name,
        backend=plan.backend.name,
        profile=spec.profile,
        network=spec.network.public(),
        limits=spec.limits,
        hostname=spec.hostname,
        idle_timeout_s=plan.lease.idle_timeout_s,
        lifetime_s=plan.lease.lifetime_s,
        env=variables(record.id, plan.env),
        labels=plan.labels,
        workspace_id=None if plan.workspace is None else plain_name(plan.workspace.name),
        workspace_mode=_mode(shared=plan.workspace is not None and plan.workspace.shared),
        snapshot=plan.snapshot,
        mounts=_host_mounts(plan.mounts),
        pip_packages=plan.packages.pip,
        npm_packages=plan.packages.npm,
        gpus=None if spec.gpus is None else str(spec.gpus),
    )


def _session(record: Record) -> SessionShape:
    return SessionShape(
        image=record.image,
        backend=record.backend,
        profile=record.profile,
        network=record.network,
        limits=record.limits,
        hostname=record.hostname,
        idle_timeout_s=record.idle_timeout_s,
        lifetime_s=record.lifetime_s,
        env=Variables(record.env_names, record.env_digest),
        labels=record.labels,
        workspace_id=None if record.workspace_id is None else plain_name(record.workspace_id),
        workspace_mode=_mode(shared=record.workspace_shared),
        snapshot=record.snapshot,
        mounts=_host_mounts(record.mounts),
        pip_packages=record.pip_packages,
        npm_packages=record.npm_packages,
        gpus=record.gpus,
    )


def _mode(*, shared: bool) -> str:
    return "shared" if shared else "exclusive"


def _host_mounts(mounts: Sequence[Mounted]) -> tuple[str, ...]:
    """Return the host mounts among them, as a request names them."""
    return tuple(
        f"{mount.name}/{mount.below}" if mount.below else mount.name
        for mount in mounts
        if not mount.name.startswith(MOUNT_PREFIX)
    )


def _memory_warning(limits: Limits) -> str:
    """Return a warning if this machine does not have the memory of the limit; else nothing."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if limits.memory_bytes <= machine:
        return ""
    return (
        f"mem_limit_mb {limits.memory_bytes // MIB} is more than this machine has "
        f"({machine // MIB}): the machine runs out of memory before the sandbox reaches its limit"
    )
