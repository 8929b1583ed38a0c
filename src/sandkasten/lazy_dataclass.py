"""`dataclass` as in the standard library, whose methods are written when they are first used.

The standard one compiles six methods of each class when its module is imported: nearly half of what
a command of ours took to start, and most of them are never called. Here a class gets its fields and
slots at once; `__init__`, `__repr__`, `__eq__` and `__hash__` are made by the standard library when
they are first asked for. `fields`, `replace` and `asdict` of `dataclasses` work as usual.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass  # noqa: TID251
else:

    def dataclass(
        *, frozen: bool = False, slots: bool = False, eq: bool = True
    ) -> Callable[[type], type]:
        def made(cls: type) -> type:
            return _lazy(cls, frozen=frozen, slots=slots, eq=eq)

        return made


# A class without a docstring would get its signature as one, which takes long to find out.
_PLACEHOLDER: Final = "dataclass"


def _lazy(cls: type, *, frozen: bool, slots: bool, eq: bool) -> type:
    own = set(cls.__dict__)
    text, cls.__doc__ = cls.__doc__, _PLACEHOLDER
    cls = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)  # noqa: TID251
    cls.__doc__ = text
    if slots:
        cls = _with_slots(cls)
    names = {"__init__", "__repr__"} | ({"__eq__"} if eq else set())
    if eq and frozen:
        names.add("__hash__")
    options = {"frozen": frozen, "slots": slots, "eq": eq}
    for name in names - own:
        setattr(cls, name, _Unwritten(cls, name, options))
    given: dict[str, Any] = {}
    if eq and not frozen and "__hash__" not in own:
        given["__hash__"] = None
    if frozen:
        given |= {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}
        if slots:
            given |= {"__getstate__": _state, "__setstate__": _restore}
    for name, value in given.items():
        setattr(cls, name, value)
    return cls


class _Unwritten:
    """A method that does not exist yet: asking for it writes it, and all others of its class."""

    def __init__(self, cls: type, name: str, options: dict[str, bool]) -> None:
        self._cls = cls
        self._name = name
        self._options = options

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        cls = self._cls
        _write(cls, self._options)
        return cls.__dict__[self._name].__get__(instance, owner)


def _write(cls: type, options: dict[str, bool]) -> None:
    pattern = dataclasses.make_dataclass(
        cls.__name__,
        [(one.name, one.type, _copy(one)) for one in dataclasses.fields(cls)],
        namespace={"__post_init__": None} if hasattr(cls, "__post_init__") else {},
        frozen=options["frozen"],
        slots=options["slots"],
        eq=options["eq"],
    )
    for name, value in list(cls.__dict__.items()):
        if isinstance(value, _Unwritten):
            method = pattern.__dict__[name]
            method.__qualname__ = f"{cls.__qualname__}.{name}"
            setattr(cls, name, method)


def _copy(one: dataclasses.Field[Any]) -> Any:
    return dataclasses.field(
        default=one.default,
        default_factory=one.default_factory,
        init=one.init,
        repr=one.repr,
        hash=one.hash,
        compare=one.compare,
        kw_only=one.kw_only,
    )


def _with_slots(cls: type) -> type:
    """Return the class again with `__slots__`, which a class must have from its beginning."""
    content = dict(cls.__dict__)
    names = tuple(one.name for one in dataclasses.fields(cls))
    inherited = {name for base in cls.__mro__[1:-1] for name in getattr(base, "__slots__", ())}
    content["__slots__"] = tuple(name for name in names if name not in inherited)
    for name in (*names, "__dict__", "__weakref__"):
        content.pop(name, None)
    again = type(cls)(cls.__name__, cls.__bases__, content)
    again.__qualname__ = cls.__qualname__
    return again


def _refuse_set(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for one, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)
