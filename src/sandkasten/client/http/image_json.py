"""Images and named workspaces out of JSON. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from sandkasten.client.http.json_values import (
    Json,
    choice,
    count,
    figure,
    mapping,
    maybe_count,
    maybe_moment,
    maybe_text,
    moment,
    record,
    records,
    text,
    texts,
    yes,
)
from sandkasten.model.images.image_info import (
    CollectedImages,
    ImageInfo,
    ImageLayer,
    ImageProgress,
    ImageUsage,
    RemovedImage,
)
from sandkasten.model.sandbox.workspace import VolumeKind, Workspace

if TYPE_CHECKING:
    from collections.abc import Sequence


def workspace_of(value: object) -> Workspace:
    found = record(value, "workspace")
    kind = found.get("kind")
    return Workspace(
        name=text(found, "name" if "name" in found else "id"),
        kind=None if kind is None else choice(kind, get_args(VolumeKind), "kind"),
        size_bytes=maybe_count(found, "size_bytes"),
        created_at=maybe_moment(found, "created_at"),
        used_bytes=maybe_count(found, "used_bytes"),
        allocated_bytes=maybe_count(found, "allocated_bytes"),
        used_by=texts(found, "used_by"),
        shared=yes(found, "shared"),
        problem=maybe_text(found, "problem"),
    )


def workspaces_of(value: object) -> Sequence[Workspace]:
    found = value.get("workspaces") if isinstance(value, dict) else value
    return [workspace_of(one) for one in records(found, "workspaces")]


def image_of(value: object) -> ImageInfo:
    found = record(value, "image")
    return ImageInfo(
        id=text(found, "id"),
        names=texts(found, "names"),
        bytes=count(found, "bytes" if "bytes" in found else "size_bytes"),
        architecture=text(found, "architecture", ""),
        os=text(found, "os", ""),
        variant=text(found, "variant", ""),
        created_at=moment(found, "created_at"),
        source=text(found, "source", ""),
        layers=tuple(_layer(one) for one in records(found.get("layers") or [], "layers")),
        env=mapping(found, "env"),
        user=text(found, "user", ""),
        entrypoint=texts(found, "entrypoint"),
        cmd=texts(found, "cmd"),
        workdir=text(found, "workdir", ""),
        labels=mapping(found, "labels"),
        created=text(found, "created", ""),
        used_by=texts(found, "used_by"),
    )


def _layer(found: Json) -> ImageLayer:
    return ImageLayer(
        text(found, "id"), count(found, "bytes"), count(found, "files"), count(found, "shared", 1)
    )


def images_of(value: object) -> Sequence[ImageInfo]:
    found = value.get("images") if isinstance(value, dict) else value
    return [image_of(one) for one in records(found, "images")]


def progress_of(value: object) -> ImageProgress:
    found = record(value, "progress")
    return ImageProgress(
        text(found, "step"),
        count(found, "done", 0),
        maybe_count(found, "total"),
        text(found, "text", ""),
    )


def removed_of(value: object) -> RemovedImage:
    found = record(value, "removal")
    return RemovedImage(
        text(found, "id"),
        texts(found, "names"),
        yes(found, "deleted"),
        count(found, "freed_bytes", 0),
    )


def collected_of(value: object) -> CollectedImages:
    found = record(value, "collection")
    return CollectedImages(
        texts(found, "images"), texts(found, "layers"), count(found, "freed_bytes", 0)
    )


def usage_of(value: object) -> ImageUsage:
    found = record(value, "usage")
    return ImageUsage(
        images=count(found, "images"),
        layers=count(found, "layers"),
        bytes=int(figure(found, "bytes")),
        separate_bytes=count(found, "separate_bytes"),
        reclaimable_bytes=count(found, "reclaimable_bytes"),
    )
