"""Frozen dataclasses to JSON-ready values and back, strictly: one codec for journal, protocol and engine messages."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gputune_tui.errors import ProtocolError

T = TypeVar("T")


def to_plain(value: object) -> Any:
    """Turn dataclasses, enums, tuples and mappings into dicts, strings and lists.

    Raises:
        TypeError: a value is none of these and not a JSON scalar.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, Sequence | frozenset):
        return [to_plain(v) for v in value]
    raise TypeError(f"{type(value).__name__} is not a plain value")


def from_plain(cls: type[T], data: object) -> T:
    """Build `cls` (a dataclass) from what `to_plain` made; missing fields take their defaults.

    Raises:
        ProtocolError: a field is unknown, missing without a default, or of the wrong type; names the field.
    """
    return cast("T", _convert(cls, data, cls.__name__))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _dataclass(cls: type, data: object, where: str) -> object:
    if not isinstance(data, Mapping):
        raise ProtocolError(f"{where}: expected an object, got {type(data).__name__}")
    hints = _hints(cls)
    unknown = [key for key in data if key not in hints]
    if unknown:
        raise ProtocolError(f"{where}: unknown field {unknown[0]!r}")
    values: dict[str, object] = {}
    for field in dataclasses.fields(cls):
        if field.name in data:
            values[field.name] = _convert(hints[field.name], data[field.name], f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ProtocolError(f"{where}: field {field.name!r} is missing")
    return cls(**values)


def _union(options: tuple[Any, ...], data: object, where: str) -> object:
    if data is None and type(None) in options:
        return None
    problem: ProtocolError | None = None
    for option in options:
        if option is type(None):
            continue
        try:
            return _convert(option, data, where)
        except ProtocolError as error:
            problem = problem or error
    raise problem or ProtocolError(f"{where}: unexpected {data!r}")


def _sequence(args: tuple[Any, ...], data: object, where: str) -> tuple[object, ...]:
    if isinstance(data, str) or not isinstance(data, Sequence):
        raise ProtocolError(f"{where}: expected a list, got {type(data).__name__}")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_convert(args[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if len(args) != len(data):
        raise ProtocolError(f"{where}: expected {len(args)} items, got {len(data)}")
    return tuple(_convert(arg, item, f"{where}[{i}]") for i, (arg, item) in enumerate(zip(args, data, strict=True)))


def _scalar(cls: type, data: object, where: str) -> object:
    if cls is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if cls in (int, float) and isinstance(data, bool):
        raise ProtocolError(f"{where}: expected {cls.__name__}, got bool")
    if not isinstance(data, cls):
        raise ProtocolError(f"{where}: expected {cls.__name__}, got {type(data).__name__}")
    return data


def _convert(cls: Any, data: object, where: str) -> object:
    if cls is Any or cls is object:
        return data
    origin = get_origin(cls)
    if origin in (Union, types.UnionType):
        return _union(get_args(cls), data, where)
    if origin is Literal:
        if data not in get_args(cls):
            raise ProtocolError(f"{where}: {data!r} is not one of {', '.join(map(repr, get_args(cls)))}")
        return data
    if origin is tuple:
        return _sequence(get_args(cls), data, where)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, Mapping):
            raise ProtocolError(f"{where}: expected an object, got {type(data).__name__}")
        value_type = get_args(cls)[1]
        return {str(k): _convert(value_type, v, f"{where}.{k}") for k, v in data.items()}
    if isinstance(cls, type) and dataclasses.is_dataclass(cls):
        return _dataclass(cls, data, where)
    if isinstance(cls, type) and issubclass(cls, Enum):
        try:
            return cls(data)
        except ValueError:
            raise ProtocolError(f"{where}: {data!r} is not a {cls.__name__}") from None
    return _scalar(cls, data, where)
