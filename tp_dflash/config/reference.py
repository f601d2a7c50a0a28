"""The configuration reference of the docs, made from the section classes so that it cannot go stale.

``python -m tp_dflash.config.reference > docs/configuration.md`` rewrites it; a test compares the two.
"""

from __future__ import annotations

import types
import typing
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tp_dflash.config.run import RunConfig

_HEAD = """# Configuration

A run is described by one TOML file with a table for each section below. Every value can be changed on the command line:
`--set drafter.block_size=16` (repeat it for more; `none` unsets). Unknown keys, wrong types and impossible combinations are
errors that name the key, what was got and what to do. Relative paths are seen from where the command is started.

This page is written by `python -m tp_dflash.config.reference > docs/configuration.md`.
"""


def reference() -> str:
    """The whole page, Markdown."""
    parts = [_HEAD]
    for name, field in RunConfig.model_fields.items():
        parts.append(_section(f"`[{name}]`", name, _model_of(field)))
    return "\n".join(parts)


def _section(title: str, path: str, section: type[BaseModel]) -> str:
    rows, nested = [], []
    for name, field in section.model_fields.items():
        inner = _inner_model(field.annotation)
        if inner is not None:
            nested.append(_section(f"`{path}.{name}`", f"{path}.{name}", inner))
        rows.append(
            f"| `{name}` | {_type(field.annotation)} | {_default(field)} | {_escape(field.description or '')} |"
        )
    intro = " ".join((section.__doc__ or "").split())
    table = "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])
    return "\n".join([f"## {title}", "", intro, "", table, "", *nested])


def _model_of(field: FieldInfo) -> type[BaseModel]:
    assert isinstance(field.annotation, type)
    assert issubclass(field.annotation, BaseModel)
    return field.annotation


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    """The section class inside ``list[X]``, ``X | None`` or ``X`` itself."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_inner_model(part) for part in get_args(annotation))
    return next((model for model in found if model is not None), None)


def _type(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Literal:
        return " or ".join(f"`{value!r}`" for value in get_args(annotation))
    if origin is typing.Annotated:
        return _type(get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(part) for part in get_args(annotation) if part is not type(None)) + ", optional"
    if origin in (list, tuple):
        return "list of " + _type(get_args(annotation)[0])
    if origin is dict:
        return "table"
    if isinstance(annotation, type):
        return "table" if issubclass(annotation, BaseModel) else annotation.__name__
    return "value"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.default if field.default is not PydanticUndefined else None
    if field.default_factory is not None:
        return "see its table"
    if isinstance(default, BaseModel):
        return "see below"
    return "unset" if default is None else f"`{default!r}`"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")
