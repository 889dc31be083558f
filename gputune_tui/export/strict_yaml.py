"""YAML read so that every fault has a line: no duplicate keys, aliases or tags, and types as declared."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from gputune_tui.errors import ConfigFileError

_MAP_TAG, _SEQ_TAG, _STR_TAG = (f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str"))
_KINDS = {"bool": "true or false", "int": "a whole number", "float": "a number", "null": "nothing", "str": "text"}
MAX_DEPTH = 20
"""Deeper files are no configuration; the parser would slow down and recurse on them."""
_SCALAR_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True)
class Item:
    """A value of the file and where it stands."""

    file: str
    path: str
    """Dotted keys from the top; empty for the whole."""
    line: int
    """1-based."""
    value: Any
    """A scalar, a dict of items by key, or a list of items."""
    text: str = ""
    """A scalar as it is written."""
    kind: str = "str"
    """Of a scalar: what YAML takes it for (bool, int, float, null, str, ...)."""

    def error(self, problem: str) -> ConfigFileError:
        """The fault in one sentence, with name and line."""
        name = f"{self.path}: " if self.path else ""
        return ConfigFileError(f"{self.file}, line {self.line}: {name}{problem}")

    def described(self) -> str:
        """What stands there, in words."""
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        if self.kind == "null":
            return "nothing"
        return f"{self.text[:60]!r}, which YAML reads as {_KINDS.get(self.kind, self.kind)}"


def load(text: str, file: str) -> Item:
    """Read one YAML document into items.

    Raises:
        ConfigFileError: not YAML, several documents, or a duplicate key, alias or tag; names the line.
    """
    try:
        _refuse_indirection(text, file)
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise ConfigFileError(f"{file} is empty; it should hold what `gputune-tui export --to yaml` writes")
            return _item(loader, node, file, "")
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", line {mark.line + 1}"
        raise ConfigFileError(f"{file}{where}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigFileError(f"{file} is not YAML: {' '.join(str(error).split())}") from None


def _refuse_indirection(text: str, file: str) -> None:
    """Anchors, aliases and tags can make a file mean more than it shows; what we write has none."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ConfigFileError(f"{file} is nested too deeply to be a configuration")
        line = event.start_mark.line + 1 if event.start_mark else 1
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        if anchor is not None:
            raise ConfigFileError(f"{file}, line {line}: anchors and aliases (&{anchor}, *{anchor}) are not allowed")
        if tag is not None:
            raise ConfigFileError(f"{file}, line {line}: tags ({tag}) are not allowed")


def _item(loader: yaml.SafeLoader, node: yaml.Node, file: str, path: str) -> Item:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        return Item(file, path, line, _mapping(loader, node, file, path))
    if isinstance(node, yaml.SequenceNode):
        items = [_item(loader, child, file, f"{path}[{i}]") for i, child in enumerate(node.value)]
        return Item(file, path, line, items)
    kind = node.tag.rpartition(":")[2]
    try:
        value = loader.construct_object(node)
    except (ValueError, OverflowError):
        raise Item(file, path, line, None).error(
            f"{node.value[:60]!r} is not a value; quote it if it is text"
        ) from None
    return Item(file, path, line, value, node.value, kind)


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode, file: str, path: str) -> dict[str, Item]:
    items: dict[str, Item] = {}
    for key, child in node.value:
        at = Item(file, path, key.start_mark.line + 1, None)
        if not isinstance(key, yaml.ScalarNode) or key.tag != _STR_TAG:
            shown = key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping"
            raise at.error(f"the key {shown!r} is not text; quote it")
        if key.value in items:
            raise at.error(f"the key {key.value!r} is given twice, first in line {items[key.value].line}")
        items[key.value] = _item(loader, child, file, f"{path}.{key.value}" if path else key.value)
    return items


Reader = Callable[[Item], object]


def read(item: Item, hint: Any, readers: Mapping[type, Reader]) -> Any:
    """The item as the type `hint` says: a dataclass, scalar, optional, tuple or mapping of these.

    Args:
        item: what the file holds.
        hint: the declared type.
        readers: how values of certain types are read instead.

    Raises:
        ConfigFileError: an unknown or missing key, or another type; names it and its line.
    """
    if hint in readers:
        return readers[hint](item)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if item.value is None:
            return None
        return read(item, next(arg for arg in args if arg is not type(None)), readers)
    if origin is tuple:
        if not isinstance(item.value, list):
            raise item.error(f"expected a list, got {item.described()}")
        return tuple(read(child, args[0], readers) for child in item.value)
    if origin is not None:
        return {key: read(child, args[1], readers) for key, child in mapping_of(item).items()}
    if dataclasses.is_dataclass(hint):
        return _dataclass(item, hint, readers)
    return _scalar(item, hint)


def mapping_of(item: Item) -> dict[str, Item]:
    """The item's keys.

    Raises:
        ConfigFileError: it is no mapping.
    """
    if not isinstance(item.value, dict):
        raise item.error(f"expected a mapping, got {item.described()}")
    return item.value


def _dataclass(item: Item, cls: Any, readers: Mapping[type, Reader]) -> object:
    children, hints = mapping_of(item), get_type_hints(cls)
    for key, child in children.items():
        if key not in hints:
            raise child.error(f"unknown key; known here are: {', '.join(hints)}")
    missing = [
        field.name
        for field in dataclasses.fields(cls)
        if field.name not in children
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise item.error(f"the key {missing[0]!r} is missing")
    return cls(**{key: read(child, hints[key], readers) for key, child in children.items()})


def _scalar(item: Item, cls: type) -> object:
    value = item.value
    if cls is float and type(value) is int:
        value = float(value)
    if type(value) is not cls:
        advice = "; quote it" if cls is str and item.kind not in ("null", "map") and item.text else ""
        raise item.error(f"expected {_SCALAR_NAMES[cls]}, got {item.described()}{advice}")
    if isinstance(value, float) and not math.isfinite(value):
        raise item.error(f"expected a number, got {item.text!r}; write null where a value is unknown")
    return value
