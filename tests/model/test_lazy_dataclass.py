"""A lazy dataclass behaves as one of the standard library with the same fields."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from sandkasten import lazy_dataclass


def _pair(dataclass: Any, **options: bool) -> tuple[Any, Any]:
    @dataclass(**options)
    class Point:
        x: int
        y: int = 2
        tags: list[str] = dataclasses.field(default_factory=list, compare=False)
        hidden: str = dataclasses.field(default="h", repr=False)
        made: int = dataclasses.field(default=0, init=False)
        late: str = dataclasses.field(default="", kw_only=True)

    @dataclass(**options)
    class Checked:
        value: int

        def __post_init__(self) -> None:
            if self.value < 0:
                raise ValueError("negative")

        def __repr__(self) -> str:
            return "own"

    return Point, Checked


OPTIONS = [
    {"frozen": True, "slots": True},
    {"slots": True},
    {"frozen": True},
    {},
    {"frozen": True, "slots": True, "eq": False},
]


def _tried(work: Any) -> object:
    try:
        return work()
    except (TypeError, ValueError, AttributeError) as exc:
        return type(exc), str(exc).replace("Point.__init__", "__init__")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_does_what_the_standard_one_does(options):
    def seen(dataclass: Any) -> list[object]:
        point, checked = _pair(dataclass, **options)
        one, same, other = point(1), point(1, tags=["t"]), point(x=1, y=3, late="l")

        def assigned() -> object:
            one.x = 5
            return one.x

        def unknown() -> object:
            one.unknown = 5
            return one.unknown

        return [
            repr(one).split(".")[-1],
            repr(checked(1)),
            one == same,
            one == other,
            one == 1,
            _tried(lambda: hash(one) == hash(same)) if options.get("eq", True) else None,
            _tried(assigned),
            _tried(unknown) if options.get("slots") and not options.get("frozen") else None,
            _tried(lambda: point()),
            _tried(lambda: point(1, 2, [], "h", 3)),
            _tried(lambda: point(1, nothing=1)),
            _tried(lambda: checked(-1)),
            dataclasses.asdict(other),
            dataclasses.replace(other, y=9).y,
            dataclasses.is_dataclass(point),
            str(inspect.signature(point)),
            [field.name for field in dataclasses.fields(point)],
            getattr(point, "__slots__", None),
            point.__match_args__,
            point(1).tags is point(1).tags,
            copy.copy(other) == other,
            copy.deepcopy(other).y,
        ]

    assert seen(lazy_dataclass.dataclass) == seen(dataclasses.dataclass)


@lazy_dataclass.dataclass(frozen=True, slots=True)
class Kept:
    x: int
    y: tuple[str, ...] = ()


def test_a_value_can_be_pickled_before_its_methods_were_used():
    kept = Kept(1, ("a",))
    assert pickle.loads(pickle.dumps(kept)) == kept
    program = (
        "import pickle, sys\n"
        f"kept = pickle.loads({pickle.dumps(kept)!r})\n"
        "assert (kept.x, kept.y) == (1, ('a',))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("dataclass", [lazy_dataclass.dataclass, dataclasses.dataclass])
def test_a_class_adds_fields_to_those_of_another(dataclass):
    point, _ = _pair(dataclass, frozen=True, slots=True)

    @dataclass(frozen=True, slots=True)
    class Named(point):  # type: ignore[misc, valid-type]
        name: str = ""

    one = Named(1, name="n")
    assert (one.x, one.y, one.name) == (1, 2, "n")
    assert Named.__slots__ == ("name",)
    assert one == Named(1, name="n") != Named(1)
    assert not hasattr(one, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.name = "other"


def test_the_constructor_is_written_when_it_is_first_used():
    point, _ = _pair(lazy_dataclass.dataclass, frozen=True)
    assert not inspect.isfunction(point.__dict__["__init__"])
    point(1)
    assert inspect.isfunction(point.__dict__["__init__"])


def test_the_fields_are_made_when_they_are_first_asked_for():
    @lazy_dataclass.dataclass(frozen=True, slots=True)
    class Named:
        KIND: ClassVar[str] = "kind"
        x: int
        y: int = 2

    assert not isinstance(vars(Named)["__dataclass_fields__"], dict)
    match Named(1):
        case Named(x, y):
            assert (x, y, Named.KIND) == (1, 2, "kind")
    assert [one.name for one in dataclasses.fields(Named)] == ["x", "y"] == [*Named.__slots__]
    assert isinstance(vars(Named)["__dataclass_fields__"], dict)


def test_threads_may_use_a_class_for_the_first_time_together():
    def used(point: Any, together: threading.Barrier) -> object:
        together.wait()
        return point(1), point(1).tags, point(1, late="b").late

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as threads:
            for _ in range(200):
                point, _other = _pair(lazy_dataclass.dataclass, frozen=True, slots=True)
                together = threading.Barrier(3)
                asked = [threads.submit(used, point, together) for _ in range(3)]
                assert [one.result() for one in asked] == [(point(1), [], "b")] * 3
    finally:
        sys.setswitchinterval(usual)
