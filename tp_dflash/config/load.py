"""From a TOML file and ``--set key=value`` overrides to a checked RunConfig.

Any mistake becomes one ConfigError that names the key, what was got and what to do; nothing is guessed.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tp_dflash.config.run import RunConfig

_OPENING = ("[", "{", '"', "'")


class ConfigError(ValueError):
    """The configuration cannot be used; the message lists every fault found."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read ``path``, apply overrides such as ``drafter.block_size=16``, and check the whole."""
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: expected a TOML configuration, got no such file; launch/configs/ has examples"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected TOML, got: {error}; correct the file") from None
    for override in overrides:
        _apply(settings, override)
    return parse_config(settings, str(path))


def parse_config(settings: dict[str, Any], source: str = "configuration") -> RunConfig:
    """Check nested settings. Types are strict: a number in quotes is not a number."""
    try:
        return RunConfig.model_validate_json(json.dumps(settings, default=str), strict=True)
    except ValidationError as error:
        faults = "\n".join(f"  {_describe(fault)}" for fault in error.errors())
        raise ConfigError(f"{source}:\n{faults}") from None


def parse_section(name: str, settings: dict[str, Any], overrides: Sequence[str] = ()) -> Any:
    """One section by itself, for commands that need no whole run; overrides are those of that section."""
    tables: dict[str, Any] = {name: settings}
    for override in overrides:
        _apply(tables, override)
    if others := set(tables) - {name}:
        raise ConfigError(f"--set: expected keys of {name!r} here, got {', '.join(sorted(others))}; leave them out")
    section: Any = RunConfig.model_fields[name].annotation
    try:
        return section.model_validate_json(json.dumps(tables[name], default=str), strict=True)
    except ValidationError as error:
        faults = "\n".join(f"  {_describe({**fault, 'loc': (name, *fault['loc'])})}" for fault in error.errors())
        raise ConfigError(f"{name}:\n{faults}") from None


def dump_config(config: RunConfig) -> dict[str, Any]:
    """The whole configuration with its defaults filled in, ready for JSON; ``parse_config`` reads it back."""
    return config.model_dump(mode="json")


def _apply(settings: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise ConfigError(
            f"--set {override}: expected section.key=value, got no such form; e.g. --set drafter.block_size=16"
        )
    table = settings
    for name in path[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {override}: expected a section at {name!r}, got a value; name its key")
    try:
        table[path[-1]] = _toml_value(text.strip())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"--set {override}: expected a TOML value, got {text.strip()!r}: {error}; close it, or put text that starts "
            "so into quotes"
        ) from None


def _toml_value(text: str) -> Any:
    """A TOML value (16, 0.5, true, [1, 9], "text"); anything else is taken as text, so that paths need no quotes.

    ``none`` unsets a key that may be unset. What opens a list, table or quoted text must be one: TOMLDecodeError.
    """
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        if text[:1] in _OPENING:
            raise
        return text


def _describe(fault: Any) -> str:
    key = ".".join(str(part) for part in fault["loc"]) or "(whole)"
    got = fault.get("input")
    if fault["type"] == "extra_forbidden":
        return f"{key}: expected a known key, got {key.rsplit('.', 1)[-1]!r}; {_suggest(fault['loc'])}"
    if fault["type"] == "missing":
        return f"{key}: expected a value, got none; set it in the file or with --set {key}=..."
    if isinstance(got, dict):
        return f"{key}: {fault['msg'].removeprefix('Value error, ')}"
    return f"{key}: {fault['msg'].removeprefix('Value error, ')}, got {got!r}; change it or use --set {key}=..."


def _suggest(location: tuple[Any, ...]) -> str:
    section: type[BaseModel] = RunConfig
    for name in location[:-1]:
        field = section.model_fields.get(str(name))
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return "remove it"
        section = inner
    close = difflib.get_close_matches(str(location[-1]), section.model_fields, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(section.model_fields)}"
