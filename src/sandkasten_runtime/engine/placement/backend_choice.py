"""Give a request a backend, and the next one of the operator's list if that is unavailable.

A request that names a backend or another isolation gets exactly that. Otherwise the first matching
rule of `policy.backends` decides. Only a list in that rule is a fallback. It is used if the backend
itself cannot make a sandbox now: it is not ready, does not answer, or its provider's quota is full.
A refusal of the request, a decision of the policy and a quota of Sandkasten are final. What was
passed over is a warning of the sandbox, an event and a record of the audit log. If no backend of a
list is left, one error has the reason of each.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    InvalidImage,
    IsolationRefused,
    PolicyDenied,
    QuotaExceeded,
    RegistryUnavailable,
    SandkastenError,
    UnsupportedByBackend,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.tenancy import checked_tenant
from sandkasten.model.backends.backend_rules import RuleSubject, in_order, match
from sandkasten.model.backends.named_backends import check_length, is_by_label, kind_of
from sandkasten.model.environment import checked_labels
from sandkasten.model.images.image_name import is_id
from sandkasten.model.sandbox.sandbox_values import wanted_images
from sandkasten.model.sandbox.workspace import workspace_request
from sandkasten.model.spelling import shown
from sandkasten.ports import SpellsImages
from sandkasten_runtime.engine.placement.named_backend_choice import is_full

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from sandkasten.model.backends.backend_rules import Matched
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.policy import Policy
    from sandkasten.model.sandbox.sandbox_values import CreateRequest
    from sandkasten.ports import Backend, EventSink, ImageSource
    from sandkasten_runtime.engine.audit_trail import AuditTrail
    from sandkasten_runtime.engine.placement.backend_health import BackendHealth
    from sandkasten_runtime.engine.placement.isolation_tiers import IsolationTiers

T = TypeVar("T")
# Errors of a backend that end a list.
_REFUSALS: Final = (IsolationRefused, UnsupportedByBackend, InvalidImage, RegistryUnavailable)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The backend of a request, and a warning for each one that was passed over."""

    backend: Backend
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Candidates:
    names: tuple[str, ...]
    rule: str = ""
    only: Backend | None = None
    """The backend of a request that no rule decides about."""


class BackendChoice:
    def __init__(
        self,
        tiers: IsolationTiers,
        images: ImageSource,
        policy: Policy,
        health: BackendHealth,
        trail: AuditTrail,
        events: EventSink | None,
    ) -> None:
        self._tiers = tiers
        self._images = images
        self._policy = policy
        self._health = health
        self._trail = trail
        self._events = events

    @property
    def has_rules(self) -> bool:
        return bool(self._policy.backends)

    async def without_rules(self, request: CreateRequest) -> Chosen:
        """Return the backend of a sandbox for the daemon's own use, whatever the rules say."""
        options = request.options
        if options.backend is not None:
            check_length(options.backend)
        workspace = self._workspace(request)
        return Chosen(await self._tiers.choose(options.backend, options.isolation, workspace))

    async def default_if_allowed(self, request: CreateRequest) -> Chosen:
        """Return the default backend for work that only some backends can do, such as a step of a
        build. Raise PolicyDenied if a rule with `only` requires another one.
        """
        chosen = await self.without_rules(request)
        # The image of a step has no name that a rule could mean.
        subject = replace(self._subject(request), images=(), unnamed=False)
        matched = match(self._policy.backends, subject)
        if matched is not None:
            labels = ", ".join(f"{key}: {value}" for key, value in subject.labels.items())
            exception = f"{{label: {{{labels}}}, use: {chosen.backend.name}}}"
            hint = f"to allow it, write the rule {exception} before that one"
            _check_only(matched, None, chosen.backend.name, hint)
        return chosen

    async def first(self, request: CreateRequest) -> Backend:
        """Return the backend that is tried first."""
        candidates = await self._candidates(request, None)
        return candidates.only or await self._named(candidates.names[0], request)

    async def on_available(
        self,
        request: CreateRequest,
        work: Callable[[Chosen], Awaitable[T]],
        joins: Record | None = None,
        *,
        trial: bool = False,
    ) -> T:
        """Return the result of `work` on the first backend that is available to it.

        `work` is called once for each backend that is tried, and must leave nothing behind if it
        fails. `joins` is the session that the request leads to: then only its backend is tried.
        If none is available, or a later one refuses the request, the error is that of the first,
        with the reason of each. A `trial` makes nothing, so what it passes over is not recorded.
        """
        candidates = await self._candidates(request, joins)
        failed: dict[str, SandkastenError] = {}
        passed: list[str] = []
        for name, following in zip(candidates.names, (*candidates.names[1:], None), strict=True):
            try:
                with asked_of(name):
                    backend = candidates.only or await self._named(name, request)
                    # A run-once backend is asked by `reach`: one of its engines can be unreachable.
                    can = backend.capabilities
                    if following is not None and can.external and not can.run_once:
                        # One request at a time tries a backend that is known to be unreachable.
                        self._health.check(backend.name, can.place(request.tenant))
                return await self._with_room(name, backend, request, work, tuple(passed))
            except (BackendUnavailable, Busy, QuotaExceeded) as exc:
                if not self._is_unavailable(exc, name):
                    raise
                failed[name] = exc
                if following is None:
                    if not passed:
                        raise
                    raise _list_failed(candidates.rule, failed) from exc
                passed.append(
                    f"backend {name} was unavailable, so {candidates.rule} led to backend "
                    f"{following}"
                )
                if not trial:
                    self._pass_over(request, name, following, exc, candidates.rule)
            except _REFUSALS as exc:
                if not passed:
                    raise
                failed[name] = exc
                raise _list_failed(candidates.rule, failed) from exc
        raise BackendUnavailable("no backend was tried", hint="run sandkasten doctor")

    async def _with_room(
        self,
        name: str,
        backend: Backend,
        request: CreateRequest,
        work: Callable[[Chosen], Awaitable[T]],
        warnings: tuple[str, ...],
    ) -> T:
        """Do the work on a backend. If `name` is a label, and its backend was filled by other
        requests meanwhile, do it on the next one with that label.
        """
        filled: set[str] = set()
        while True:
            try:
                return await work(Chosen(backend, warnings))
            except QuotaExceeded as exc:
                if not is_by_label(name) or not is_full(exc, backend.name):
                    raise
                filled.add(backend.name)
                with asked_of(name):
                    backend = await self._named(name, request)
                if backend.name in filled:
                    raise

    async def _named(self, name: str, request: CreateRequest) -> Backend:
        return await self._tiers.named(name, self._workspace(request))

    async def _candidates(self, request: CreateRequest, joins: Record | None) -> _Candidates:
        options = request.options
        matched = match(self._policy.backends, self._subject(request)) if self.has_rules else None
        if options.backend is not None or options.isolation not in (None, "standard"):
            chosen = (await self.without_rules(request)).backend
            if matched is not None:
                _check_only(matched, options.backend, chosen.name)
            return _Candidates((_asked_name(options.backend, chosen),), only=chosen)
        if matched is None:
            chosen = (await self.without_rules(request)).backend
            return _Candidates((chosen.name,), only=chosen)
        names = in_order(matched.rule, self._tiers.strength, self._policy.isolation_minimum)
        if not names:
            raise PolicyDenied(
                f"{matched.name} names no backend that policy.isolation_minimum allows",
                hint="ask the operator to change one of them",
                rule=matched.name,
            )
        if joins is not None and joins.backend in names:
            names = (joins.backend,)
        elif options.workspace_id is not None:
            # Its files are in one place: elsewhere the request would get another, empty one.
            names = tuple(
                name for name in names if name == names[0] or self._share_files(name, names[0])
            )
        return _Candidates(names, matched.name)

    def _share_files(self, name: str, other: str) -> bool:
        external = self._health.is_external
        return not external(name) and not external(other)

    def _is_unavailable(self, exc: SandkastenError, name: str) -> bool:
        """Return whether an error means that this backend cannot make a sandbox now."""
        backend = exc.details.get("backend")
        # Of labels, the error is that of a backend which has them.
        if backend != name and not (is_by_label(name) and kind_of(str(backend)) == kind_of(name)):
            return False
        # On this machine, what is full is the machine, and the request may be what is too large.
        return isinstance(exc, BackendUnavailable) or self._health.is_external(name)

    def _workspace(self, request: CreateRequest) -> str | None:
        workspace = workspace_request(request, self._policy.workspaces)
        return None if workspace is None else workspace.name

    def _subject(self, request: CreateRequest) -> RuleSubject:
        name = wanted_images(request, self._policy.default_image)[0]
        spelled = self._images.spellings(name) if isinstance(self._images, SpellsImages) else ()
        return RuleSubject(
            images=(name, *spelled),
            unnamed=all(is_id(text) for text in (name, *spelled)),
            labels=checked_labels(request.options.labels),
            tenant=checked_tenant(request.tenant),
            agent=request.agent,
        )

    def _pass_over(
        self, request: CreateRequest, name: str, following: str, exc: SandkastenError, rule: str
    ) -> None:
        self._trail.passed_over(request.tenant, request.key_id, name, following, exc, rule)
        if self._events is not None:
            about = {"backend": name, "next": following, "code": exc.code}
            reason = exc.operator_message
            self._events.emit("backend.passed_over", {**about, "reason": reason, "rule": rule})


def _asked_name(label: str | None, chosen: Backend) -> str:
    """Return the label by which a request chose its backend, or the name of that backend."""
    return label if label is not None and is_by_label(label) else chosen.name


def _check_only(matched: Matched, requested: str | None, backend: str, hint: str = "") -> None:
    if matched.rule.only and not {requested, backend} & set(matched.rule.use):
        named = " or ".join(matched.rule.use)
        raise PolicyDenied(
            f"{matched.name} does not allow backend {shown(backend)} for this request",
            hint=hint or f"leave backend and isolation out, or name {named}",
            rule=matched.name,
            backend=backend,
        )


def _list_failed(rule: str, failed: Mapping[str, SandkastenError]) -> SandkastenError:
    """Return one error for a list of backends of which none took the request.

    It is the error of the first one, which the operator prefers, with the reason of each. Isolation
    that cannot be provided is a defect of this machine, and comes before an unreachable engine.
    """
    refused = [error for error in failed.values() if isinstance(error, IsolationRefused)]
    chief = next(iter((*refused, *failed.values())))
    tried = [f"{name}: {error.message}" for name, error in failed.items()]
    error = type(chief)(
        f"no backend of {rule} is available: {'; '.join(tried)}",
        hint=chief.hint,
        **{**chief.details, "rule": rule, "tried": tried},
    )
    for name, failure in failed.items():
        for note in getattr(failure, "__notes__", ()):
            error.add_note(f"{name}: {note}")
    return error


@contextmanager
def asked_of(backend: str) -> Iterator[None]:
    """Name the backend in errors that its own methods raise: other parts, such as the database,
    raise the same classes.
    """
    try:
        yield
    except (BackendUnavailable, QuotaExceeded) as exc:
        exc.details.setdefault("backend", backend)
        raise
