"""YAML text that every YAML 1.1 and 1.2 reader takes for the same values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import yaml


def yaml_text(value: Any) -> str:
    """The document in plain scalars, keys in their order; NaN and infinity become null."""
    # A line is never folded: folding is where YAML writers and readers disagree about spaces.
    return yaml.dump(builtin(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 30)


def builtin(value: Any) -> Any:
    """Builtin scalars only: a subclass of float or str has no plain form, and NaN is no number anywhere else."""
    if isinstance(value, Mapping):
        return {builtin(key): builtin(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [builtin(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return "".join(value)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


LONGEST_KEY = 1000
"""Readers take a longer one for no key, unless `?` stands before it (YAML 1.1, section 5.2.2: 1024 characters)."""


class _Dumper(yaml.SafeDumper):
    """Safe dumper that leaves only obvious words unquoted: YAML 1.1 and 1.2 readers disagree about the rest."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def check_simple_key(self) -> bool:
        """PyYAML counts a key's characters, but its reader counts what is written: ten for one beyond the BMP."""
        if not super().check_simple_key():
            return False
        return self.analysis is None or len(self.analysis.scalar.encode("unicode_escape")) < LONGEST_KEY


_OBVIOUS_TEXT = re.compile(r"[A-Za-z_/][A-Za-z0-9_/.@+-]*( [A-Za-z0-9_/.@+-]+)*")
_WORDS_WITH_A_MEANING = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nan", "inf"})


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if _OBVIOUS_TEXT.fullmatch(text) and (text == "none" or text.lower() not in _WORDS_WITH_A_MEANING):
        style = None
    else:
        style = "'" if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
