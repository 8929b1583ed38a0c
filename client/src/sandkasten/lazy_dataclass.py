"""`dataclass` as in the standard library, whose `__init__` is written when it is first used.

The standard one compiles six methods of each class when its module is imported: nearly half of what
one of our commands took to start, and most of them are never called. Here a class gets its slots at
once, its fields when they are first asked for and its `__init__` at the first call; the other
methods are common to all classes.
`fields`, `replace` and `asdict` of `dataclasses` work as usual. Not for `InitVar`.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass  # noqa: TID251
else:

    def dataclass(
        *, frozen: bool = False, slots: bool = False, eq: bool = True
    ) -> Callable[[type], type]:
        def decorate(cls: type) -> type:
            return _lazy(cls, frozen=frozen, slots=slots, eq=eq)

        return decorate


# A class without a docstring would get its signature as one, which takes long to find out.
_PLACEHOLDER: Final = "dataclass"
_COMPARED: Final = "__compared__"
_FIELDS: Final = "__dataclass_fields__"
_MADE: Final = (_FIELDS, "__dataclass_params__", "__match_args__")


class _Absent:
    def __repr__(self) -> str:
        return "<factory>"


_ABSENT: Final = _Absent()


def _lazy(cls: type, *, frozen: bool, slots: bool, eq: bool) -> type:
    own = set(cls.__dict__)
    if slots and not any(hasattr(base, _FIELDS) for base in cls.__bases__):
        cls = _unprocessed(cls)
    else:
        cls = _processed(cls)
        if slots:
            cls = _with_slots(cls, tuple(field.name for field in dataclasses.fields(cls)))
    methods: dict[str, Any] = {"__init__": _Unwritten(cls, frozen=frozen), "__repr__": _shown}
    if eq:
        methods |= {"__eq__": _equal, "__hash__": _hashed if frozen else None}
        methods[_COMPARED] = _Compared(cls)
    if frozen:
        methods |= {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}
        if slots:
            methods |= {"__getstate__": _state, "__setstate__": _restore}
    for name, value in methods.items():
        if name not in own:
            setattr(cls, name, value)
    return cls


def _processed(cls: type) -> type:
    """Have the standard library make the fields of a class."""
    text, cls.__doc__ = cls.__doc__, _PLACEHOLDER
    cls = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)  # noqa: TID251
    cls.__doc__ = text
    return cls


def _unprocessed(cls: type) -> type:
    """Return the class with slots, whose fields are made when they are first asked for."""
    annotations = cls.__dict__.get("__annotations__", {})
    names = [name for name, hint in annotations.items() if not _is_class_variable(hint)]
    slotted = _with_slots(cls, tuple(names))
    for name in _MADE:
        if name not in cls.__dict__:
            setattr(slotted, name, _Unmade(cls, slotted, name))
    return slotted


def _is_class_variable(hint: object) -> bool:
    return isinstance(hint, str) and hint.startswith(("ClassVar", "typing.ClassVar"))


class _Unmade:
    """An attribute that the standard library computes; reading it computes it."""

    def __init__(self, original: type, cls: type, name: str) -> None:
        self._original = original
        self._cls = cls
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        # The standard library changes the class while it makes the fields, and threads may ask for
        # them at once: each makes those of a copy.
        processed = _processed(_copy(self._original, dict(self._original.__dict__)))
        for name in _MADE:
            if isinstance(self._cls.__dict__[name], _Unmade):
                setattr(self._cls, name, getattr(processed, name))
        return getattr(self._cls, self._name)


class _Unwritten:
    """The `__init__` of a class that does not have one yet: asking for it writes it."""

    def __init__(self, cls: type, *, frozen: bool) -> None:
        self._cls = cls
        self._frozen = frozen

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        written = _init_of(self._cls, frozen=self._frozen)
        self._cls.__init__ = written  # type: ignore[misc]
        return written.__get__(instance, owner)


def _init_of(cls: type, *, frozen: bool) -> Any:
    names: dict[str, Any] = {"_set": object.__setattr__, "_absent": _ABSENT}
    places: list[str] = []
    keywords: list[str] = []
    lines: list[str] = []
    for field in dataclasses.fields(cls):
        parameter = value = field.name
        if field.default is not dataclasses.MISSING:
            names[f"_default_{field.name}"] = field.default
            parameter += f"=_default_{field.name}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"_factory_{field.name}"] = field.default_factory
            parameter += "=_absent"
            value = f"_factory_{field.name}() if {field.name} is _absent else {field.name}"
        if field.init:
            (keywords if field.kw_only else places).append(parameter)
        elif "=" in parameter:
            value = f"_default_{field.name}" if value == field.name else f"_factory_{field.name}()"
        else:
            continue
        lines.append(
            f"_set(self, {field.name!r}, {value})" if frozen else f"self.{field.name} = {value}"
        )
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ", ".join(["self", *places, *(["*", *keywords] if keywords else [])])
    source = f"def __init__({parameters}):\n " + "\n ".join(lines or ["pass"])
    exec(source, names)  # noqa: S102 the names are those of our classes
    written = names["__init__"]
    written.__qualname__ = f"{cls.__qualname__}.__init__"
    written.__annotations__ = {
        field.name: field.type for field in dataclasses.fields(cls) if field.init
    } | {"return": None}
    return written


class _Compared:
    """Reads the fields that count when two values are compared, as one value."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        names = [field.name for field in dataclasses.fields(self._cls) if field.compare]
        read = staticmethod(attrgetter(*names) if names else lambda _: None)
        setattr(self._cls, _COMPARED, read)
        return read.__func__


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self is other or self.__compared__(self) == self.__compared__(other)


def _hashed(self: Any) -> int:
    return hash(self.__compared__(self))


@recursive_repr()
def _shown(self: Any) -> str:
    shown = [
        f"{field.name}={getattr(self, field.name)!r}"
        for field in dataclasses.fields(self)
        if field.repr
    ]
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _with_slots(cls: type, names: tuple[str, ...]) -> type:
    """Return the class again with `__slots__`, which a class must have from its beginning."""
    content = dict(cls.__dict__)
    inherited = {name for base in cls.__mro__[1:-1] for name in getattr(base, "__slots__", ())}
    content["__slots__"] = tuple(name for name in names if name not in inherited)
    for name in names:
        content.pop(name, None)
    return _copy(cls, content)


def _copy(cls: type, content: dict[str, Any]) -> type:
    for name in ("__dict__", "__weakref__"):
        content.pop(name, None)
    again = type(cls)(cls.__name__, cls.__bases__, content)
    again.__qualname__ = cls.__qualname__
    return again


def _refuse_set(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
