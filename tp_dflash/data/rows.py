"""Rows of Arrow tables (Parquet files, data sets) back to the records they were written from.

In: an Arrow batch or table. Out: one dict a row, or a BadRecordError for a row whose bytes are no text. A column of objects
has every field that any object of it has, null where an object did not have it: nulls are left out again, so that a row
means what its record meant (a message without a weight has none, a tool has its own parameters only).
"""

from __future__ import annotations

from typing import Any, Protocol

from tp_dflash.data.bad_record import BadRecordError, DropReason


class Rows(Protocol):
    """What an Arrow batch and a table have in common."""

    @property
    def num_rows(self) -> int: ...

    def slice(self, offset: int, length: int) -> Rows: ...

    def to_pylist(self) -> list[dict[str, Any]]: ...


def read_rows(rows: Rows) -> list[dict[str, Any] | BadRecordError]:
    """All rows in order."""
    try:
        return [_without_nulls(row) for row in rows.to_pylist()]
    except UnicodeDecodeError:
        return [_read_row(rows.slice(index, 1)) for index in range(rows.num_rows)]


def _read_row(row: Rows) -> dict[str, Any] | BadRecordError:
    try:
        return _without_nulls(row.to_pylist()[0])
    except UnicodeDecodeError as error:
        return BadRecordError(DropReason.NOT_UTF8, f"{error.reason} at byte {error.start} of a field")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(entry) for key, entry in value.items() if entry is not None}
    # Long lists are token ids, which have no fields.
    if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        return [_without_nulls(entry) for entry in value]
    return value
