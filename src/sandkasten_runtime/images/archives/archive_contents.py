"""The contents of an archive, before any of it is unpacked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.images.image_config import bad, diff_ids_of, parse_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sandkasten_runtime.images.image_config import ImageConfig


@dataclass(frozen=True, slots=True)
class LayerRef:
    """`digest` is that of the blob as stored, if the format contains it."""

    diff_id: str
    size: int
    open: Callable[[], BinaryIO]
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class FoundImage:
    config: ImageConfig
    layers: tuple[LayerRef, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Blob:
    """A layer's file: its size, how to read it, and its digest if known."""

    size: int
    open: Callable[[], BinaryIO]
    digest: str | None = None


def found_image(raw_config: Any, blobs: Sequence[Blob], names: Sequence[str]) -> FoundImage:
    """Check each layer against the configuration. Raise InvalidImage if they do not match."""
    config = parse_config(raw_config)
    diff_ids = diff_ids_of(raw_config)
    if len(diff_ids) != len(blobs):
        raise bad(f"it has {len(blobs)} layers and its configuration names {len(diff_ids)}")
    if config.os != "linux":
        raise bad(f"it is made for {config.os[:40]}", "only Linux images run here")
    layers = [
        LayerRef(diff_id, blob.size, blob.open, blob.digest)
        for diff_id, blob in zip(diff_ids, blobs, strict=True)
    ]
    return FoundImage(config, tuple(layers), tuple(names))
