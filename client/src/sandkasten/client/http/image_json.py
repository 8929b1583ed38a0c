"""Images and named workspaces out of JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sandkasten.client.http.json_values import value_of, values_of
from sandkasten.model.images.image_info import (
    BuiltImage,
    CollectedImages,
    ImageInfo,
    ImageProgress,
    ImageUsage,
    RemovedImage,
)
from sandkasten.model.sandbox.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Sequence


def workspace_of(value: object) -> Workspace:
    return value_of(Workspace, value, "workspace")


def workspaces_of(value: object) -> Sequence[Workspace]:
    return values_of(Workspace, value, "workspaces")


def image_of(value: object) -> ImageInfo:
    return value_of(ImageInfo, value, "image")


def images_of(value: object) -> Sequence[ImageInfo]:
    return values_of(ImageInfo, value, "images")


def built_of(value: object) -> BuiltImage:
    fields = dict(value) if isinstance(value, Mapping) else {}
    own = {name: fields.pop(name, None) for name in ("cached", "warnings")}
    return value_of(BuiltImage, {"image": fields, **own}, "built image")


def progress_of(value: object) -> ImageProgress:
    return value_of(ImageProgress, value, "progress")


def removed_of(value: object) -> RemovedImage:
    return value_of(RemovedImage, value, "removal")


def collected_of(value: object) -> CollectedImages:
    return value_of(CollectedImages, value, "collection")


def usage_of(value: object) -> ImageUsage:
    return value_of(ImageUsage, value, "usage")
