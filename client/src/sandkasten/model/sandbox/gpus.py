"""GPUs that a request asks for, and whether it may have them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest, PolicyDenied, UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.field_patterns import DEVICE_ID, GPUS, form
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.backends.capabilities import Capabilities
    from sandkasten.model.sandbox.sandbox_options import Number, SandboxOptions

ALL: Final = -1
MAX_GPUS: Final = 64
_WORD: Final = "all"
_ID: Final = form(DEVICE_ID)
_TEXT: Final = form(GPUS)
_HINT: Final = 'give a number, "all", or a list of device ids'


@dataclass(frozen=True, slots=True)
class GpuRequest:
    count: int = 0
    """How many, or ALL; 0 if `ids` names them."""
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.ids:
            return ",".join(self.ids)
        return _WORD if self.count == ALL else str(self.count)


def requested_gpus(options: SandboxOptions) -> GpuRequest | None:
    """Return the GPUs of a request, from `gpus` or from `limits`; None if it asks for none."""
    limit = options.limits.get("gpus")
    requested = parse_gpus(options.gpus)
    if limit is None:
        return requested
    limited = parse_gpus(limit, "limits.gpus")
    if options.gpus is not None and requested != limited:
        raise InvalidRequest(
            "gpus and limits.gpus contradict each other",
            hint="they mean the same; give one of them",
            field="gpus",
        )
    return limited


def without_gpus(limits: Mapping[str, Number]) -> Mapping[str, Number]:
    """Return the limits that are numbers of the kernel."""
    if "gpus" not in limits:
        return limits
    return {name: value for name, value in limits.items() if name != "gpus"}


def parse_gpus(value: object, field: str = "gpus") -> GpuRequest | None:
    if value is None:
        return None
    if isinstance(value, str) and value.isdecimal():
        if not _TEXT.match(value):
            raise InvalidRequest(
                f"{field} must be 0 to {MAX_GPUS}, got {shown(value)}", hint=_HINT, field=field
            )
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value <= MAX_GPUS:
            raise InvalidRequest(
                f"{field} must be 0 to {MAX_GPUS}, got {value}", hint=_HINT, field=field
            )
        return GpuRequest(value) if value else None
    if value == _WORD:
        return GpuRequest(ALL)
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_GPUS:
        raise InvalidRequest(
            f"{field} must be a number, all or 1 to {MAX_GPUS} device ids", hint=_HINT, field=field
        )
    for device in value:
        if not isinstance(device, str) or not _ID.match(device):
            raise InvalidRequest(
                f"{shown(str(device))} is not a valid device id", hint=_HINT, field=field
            )
        if "=" in device and not device.partition("=")[0].endswith("/gpu"):
            # The Container Device Interface also names devices that are not GPUs.
            raise InvalidRequest(
                f"device {shown(device)} is not a GPU",
                hint="give a name of the class gpu, such as nvidia.com/gpu=0",
                field=field,
            )
    return GpuRequest(ids=tuple(dict.fromkeys(value)))


def check_gpus(request: GpuRequest, allowed: int, field: str = "gpus") -> None:
    """Raise PolicyDenied if the operator allows fewer; `allowed` may be ALL."""
    wanted = request.count if not request.ids else len(request.ids)
    # Drivers and specifications use this word as the id of a device that is all of them.
    if any(device.rpartition("=")[2] == _WORD for device in request.ids):
        wanted = ALL
    if allowed == ALL or (wanted != ALL and wanted <= allowed):
        return
    most = str(allowed) if allowed else "none"
    raise PolicyDenied(
        f"{field} requests {shown(str(request))}, but policy.gpus allows {most}",
        hint="request fewer, or ask the operator to raise policy.gpus",
        rule="policy.gpus",
        field=field,
    )


def check_gpus_on(backend: str, can: Capabilities) -> None:
    """Raise UnsupportedByBackend for a backend that has no GPUs to give."""
    if not can.features.gpus:
        raise UnsupportedByBackend(
            f"backend {backend} cannot give a sandbox GPUs",
            hint="request a backend that has GPUs: sandkasten doctor --all lists them",
            field="gpus",
        )
