"""Calls of the Kubernetes API with the answers of a real server, as a file of the tests.

Of an answer, only what the backend reads is kept. Of a body that is sent, only its shape is: the
names of its fields and the kinds of their values. Keys, addresses and times are not recorded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandkasten_kubernetes import pod_names
from tests.kubernetes.pod_processes import ADDRESS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FILE = Path(__file__).with_name("calls.json")
ATTEMPT = pod_names.ATTEMPT
RENEW = "python -m tests.cluster record"
JSON = "application/json"
SENT = "<sent>"
"""Stands for what the client sent with the object."""
END = "END"
"""An event of ours: the server ended the watch by itself."""
# Maps whose keys are not names of fields.
_FREE = ("labels", "matchLabels", "annotations", "data", "nodeSelector")


@dataclass(slots=True)
class RecordedCall:
    who: str
    """The token of the client."""
    method: str
    path: str
    query: dict[str, str]
    accept: str = JSON
    form: str = ""
    """The content type of the body, if there is one."""
    sends: Any = None
    """The shape of the body."""
    status: int = 0
    answer: Any = None
    """JSON, or text where the server answered with that."""
    events: list[Any] = field(default_factory=list)
    """The answer to a watch that was not refused."""

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"

    @property
    def object_path(self) -> str:
        """Return the path of the one object that a GET or a watch is about; else ''."""
        if self.method != "GET":
            return ""
        if self.is_watch:
            return f"{self.path}/{self.query['fieldSelector'].removeprefix('metadata.name=')}"
        return self.path

    @property
    def shows_object(self) -> bool:
        if not self.is_watch:
            return self.status < 400
        return any(one["type"] in ("ADDED", "MODIFIED") for one in self.events)

    def is_same_as(self, other: RecordedCall) -> bool:
        """Return whether both ask the same. The version of a watch is not looked at."""
        mine, its = dict(self.query), dict(other.query)
        mine.pop("resourceVersion", None)
        its.pop("resourceVersion", None)
        return (self.who, self.method, self.path, mine, self.accept, self.form) == (
            other.who, other.method, other.path, its, other.accept, other.form,
        )  # fmt: skip

    def outline(self) -> tuple[object, ...]:
        """Return what is the same in every recording."""
        query = {name: one for name, one in self.query.items() if name != "resourceVersion"}
        types = {one["type"] for one in self.events} & {"DELETED", "ERROR", "BOOKMARK"}
        reason = self.answer.get("reason") if isinstance(self.answer, dict) else self.answer
        return (
            self.who, self.method, self.path, query, self.accept, self.form, self.sends,
            self.status, reason, sorted(types),
        )  # fmt: skip

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.query} as {self.who}"


def shape(found: Any) -> Any:
    """Return the names of all fields and the kinds of their values; items of a list are one."""
    if isinstance(found, dict):
        return {name: SENT if name in _FREE else shape(one) for name, one in found.items()}
    if isinstance(found, list):
        made: dict[str, Any] = {}
        for one in found:
            seen = shape(one)
            if not isinstance(seen, dict):
                return [seen]
            made = _merged(made, seen)
        return [made] if found else []
    return type(found).__name__


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    made = dict(one)
    for name, its in other.items():
        mine = made.get(name)
        if isinstance(mine, dict) and isinstance(its, dict):
            its = _merged(mine, its)
        made[name] = its
    return dict(sorted(made.items()))


# ---- what is kept of an answer


def kept(answer: Any) -> Any:
    """Return what the backend reads of an answer."""
    kind = str(answer.get("kind") or "")
    if kind == "Status":
        return _some(answer, "kind", "code", "reason", "message")
    if kind == "SelfSubjectAccessReview":
        return {"kind": kind, "status": _some(answer["status"], "allowed")}
    if kind == "APIResourceList":
        return {"kind": kind, "resources": [_some(one, "name") for one in answer["resources"]]}
    if "items" in answer:
        about = _some(answer.get("metadata") or {}, "continue")
        # An empty list is null.
        items = answer["items"] and [kept(one) for one in answer["items"]]
        return {"kind": kind, "metadata": about, "items": items}
    if "metadata" in answer:
        return _object(answer)
    return _some(answer, "gitVersion")


def _object(found: Any) -> Any:
    made = {"kind": found.get("kind"), "metadata": _metadata(found["metadata"])}
    if "data" in found:
        made["data"] = SENT
    spec = found.get("spec") or {}
    if found.get("kind") == "Pod":
        made["spec"] = _some(spec, "schedulingGates")
        made["spec"]["containers"] = [
            _some(one, "name", "resources") for one in spec.get("containers") or ()
        ]
    status = found.get("status") or {}
    made["status"] = _some(status, "phase", "reason", "message")
    if status.get("podIP"):
        made["status"]["podIP"] = ADDRESS
    for name, fields in (
        ("conditions", ("type", "status", "reason", "message")),
        ("containerStatuses", ("name", "image", "state")),
    ):
        if status.get(name):
            made["status"][name] = [_state(_some(one, *fields)) for one in status[name]]
    return {name: one for name, one in made.items() if one}


def _metadata(found: Any) -> Any:
    made = _some(found, "name", "uid", "resourceVersion", "labels")
    if found.get("deletionTimestamp"):
        made["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    noted = {
        name: SENT if name == ATTEMPT else one
        for name, one in (found.get("annotations") or {}).items()
        if name.startswith(("sandkasten.", "agents.x-k8s.io/"))
    }
    if noted:
        made["annotations"] = noted
    if found.get("ownerReferences"):
        made["ownerReferences"] = [_some(one, "kind", "name") for one in found["ownerReferences"]]
    return made


def _state(container: Any) -> Any:
    if "state" in container:
        container["state"] = {
            name: _some(one, "reason", "message", "exitCode")
            for name, one in container["state"].items()
        }
    return container


def _some(found: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: found[name] for name in names if name in found}


def settle(calls: list[RecordedCall]) -> None:
    """Replace what is different in each recording: versions, by their order, and ids."""
    versions: set[int] = set()
    objects = list(_objects(calls))
    for one in objects:
        versions.add(int(one["metadata"].get("resourceVersion") or 0))
    for call in calls:
        versions.add(int(call.query.get("resourceVersion") or 0))
    order = {str(one): str(at) for at, one in enumerate(sorted(versions))}
    ids: dict[str, str] = {}
    for one in objects:
        told = one["metadata"]
        if "resourceVersion" in told:
            told["resourceVersion"] = order[told["resourceVersion"]]
        if "uid" in told:
            told["uid"] = ids.setdefault(told["uid"], f"uid-{len(ids) + 1}")
    for call in calls:
        if call.query.get("resourceVersion"):
            call.query["resourceVersion"] = order[call.query["resourceVersion"]]
        call.events = list(_changes(call.events))


def _objects(calls: list[RecordedCall]) -> Iterator[Any]:
    for call in calls:
        told = call.answer if isinstance(call.answer, dict) else {}
        for one in (told, *(told.get("items") or ()), *(event["object"] for event in call.events)):
            if "metadata" in one:
                yield one


def _changes(events: list[Any]) -> Iterator[Any]:
    """Leave out events in which nothing changes that is kept, but for the version."""
    last: Any = None
    for one in events:
        told = one["object"].get("metadata") or {}
        seen = {**one["object"], "metadata": {**told, "resourceVersion": ""}}
        if (one["type"], seen) != last or one["type"] == END:
            yield one
        last = (one["type"], seen)


# ---- the file


@dataclass(frozen=True, slots=True)
class Recording:
    version: str
    """Of Kubernetes."""
    scenes: dict[str, list[RecordedCall]]


def write(recording: Recording) -> None:
    shapes: dict[str, Any] = {}
    scenes = {
        name: [_written(one, shapes) for one in calls] for name, calls in recording.scenes.items()
    }
    lines = ["{", f'"kubernetes": {json.dumps(recording.version)},', '"shapes": {']
    lines.append(",\n".join(f"{json.dumps(name)}: {_line(one)}" for name, one in shapes.items()))
    lines += ["},", '"scenes": {']
    lines.append(
        ",\n".join(
            f"{json.dumps(name)}: [\n" + ",\n".join(map(_line, calls)) + "\n]"
            for name, calls in scenes.items()
        )
    )
    FILE.write_text("\n".join([*lines, "}", "}", ""]))


def _line(found: Any) -> str:
    return json.dumps(found, separators=(",", ":"), sort_keys=True)


def _written(call: RecordedCall, shapes: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "who": call.who, "method": call.method, "path": call.path, "query": call.query,
        "accept": call.accept, "form": call.form, "status": call.status, "answer": call.answer,
        "events": call.events,
    }  # fmt: skip
    if call.sends is not None:
        made["sends"] = _named(call, shapes)
    return {name: one for name, one in made.items() if one != _USUAL.get(name)}


_USUAL: dict[str, Any] = {"who": "daemon", "accept": JSON, "form": "", "query": {}, "events": []}


def _named(call: RecordedCall, shapes: dict[str, Any]) -> str:
    kind = call.path.split("/")[-1] if call.method == "POST" else call.method.lower()
    for number in range(1, 100):
        name = f"{kind} {number}"
        if shapes.setdefault(name, call.sends) == call.sends:
            return name
    raise AssertionError(f"too many shapes of {kind}")


def read() -> Recording:
    found = json.loads(FILE.read_text())
    shapes = found["shapes"]
    return Recording(
        found["kubernetes"],
        {
            name: [
                RecordedCall(
                    **{
                        "who": "daemon",
                        "query": {},
                        **one,
                        "sends": shapes[one["sends"]] if "sends" in one else None,
                    }
                )
                for one in calls
            ]
            for name, calls in found["scenes"].items()
        },
    )
