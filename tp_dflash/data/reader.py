"""Records of any kind of file, in chunks that can be sent to another process.

In: a RecordFile. Out: RecordChunks in file order, each with the number of its first record. Lines stay bytes and rows
stay Arrow batches here, so that decoding is done by whoever encodes the chunk.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path
from typing import IO, Any

from tp_dflash.data.bad_record import BadRecordError, DropReason
from tp_dflash.data.json_values import numbered_values
from tp_dflash.data.lines import MAX_LINE_BYTES, numbered_lines, unpacked
from tp_dflash.data.record_file import FileKind, RecordFile
from tp_dflash.data.rows import Rows, read_rows

CHUNK_RECORDS = 256
CHUNK_BYTES = 1 << 20
_DAMAGE = (OSError, EOFError, zlib.error, LZMAError)


@dataclass(frozen=True)
class RecordChunk:
    """Consecutive records of one file. first: number of the first, counted from 1.

    problems: (number, reason, detail) of records that could not even be read; they are not in the payload.
    file_fraction: how far the end of the chunk is through its file, 0 where that is not known.
    """

    file_index: int
    first: int
    numbers: list[int] | None
    payload: list[bytes] | Rows
    problems: list[tuple[int, DropReason, str]]
    file_fraction: float

    def payloads(self) -> list[bytes] | list[dict[str, Any] | BadRecordError]:
        return self.payload if isinstance(self.payload, list) else read_rows(self.payload)

    def number(self, index: int) -> int:
        """Line or row number of the index-th record of the payload."""
        return self.first + index if self.numbers is None else self.numbers[index]


def read_chunks(files: list[RecordFile]) -> Iterator[RecordChunk]:
    """All files one after the other."""
    for index, file in enumerate(files):
        yield from _READERS[file.kind](index, file)


def _read_lines(index: int, file: RecordFile) -> Iterator[RecordChunk]:
    with Path(file.path).open("rb") as raw:
        yield from _chunked(index, file, raw, _guarded(numbered_lines(unpacked(raw, file.path))))


def _read_json(index: int, file: RecordFile) -> Iterator[RecordChunk]:
    with Path(file.path).open("rb") as raw:
        yield from _chunked(index, file, raw, _guarded(numbered_values(unpacked(raw, file.path))))


Numbered = Iterator[tuple[int, bytes | tuple[DropReason, str] | None]]


def _guarded(records: Numbered) -> Numbered:
    """Ends a file at the place where it is damaged, and says so, instead of ending the preparation."""
    last = 0
    try:
        for number, record in records:
            last = number
            yield number, record
    except _DAMAGE as error:
        yield last + 1, (DropReason.UNREADABLE_FILE, f"the file is damaged from here on: {error}")


def _chunked(index: int, file: RecordFile, raw: IO[bytes], records: Numbered) -> Iterator[RecordChunk]:
    num_file_bytes = max(1, file.num_bytes)
    numbers: list[int] = []
    payload: list[bytes] = []
    problems: list[tuple[int, DropReason, str]] = []
    num_bytes = 0
    for number, record in records:
        if isinstance(record, bytes):
            numbers.append(number)
            payload.append(record)
            num_bytes += len(record)
        else:
            reason, detail = record or (DropReason.LINE_TOO_LONG, f"more than {MAX_LINE_BYTES} bytes")
            problems.append((number, reason, detail))
        if len(payload) + len(problems) >= CHUNK_RECORDS or num_bytes >= CHUNK_BYTES:
            yield RecordChunk(index, 0, numbers, payload, problems, min(1.0, raw.tell() / num_file_bytes))
            numbers, payload, problems, num_bytes = [], [], [], 0
    if payload or problems:
        yield RecordChunk(index, 0, numbers, payload, problems, 1.0)


def _read_parquet(index: int, file: RecordFile) -> Iterator[RecordChunk]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"expected the package pyarrow to read {file.path}, got none; pip install tp_dflash[data]"
        ) from None
    first = 1
    try:
        with parquet.ParquetFile(file.path) as opened:
            for batch in opened.iter_batches(batch_size=CHUNK_RECORDS):
                done = (first - 1 + batch.num_rows) / opened.metadata.num_rows
                yield RecordChunk(index, first, None, batch, [], done)
                first += batch.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        damage = (first, DropReason.UNREADABLE_FILE, f"the file is damaged from here on: {error}")
        yield RecordChunk(index, first, None, [], [damage], 1.0)


def _read_dataset(index: int, file: RecordFile) -> Iterator[RecordChunk]:
    from tp_dflash.data.hugging_face import open_dataset

    first = 1
    for table in open_dataset(file).with_format("arrow").iter(batch_size=CHUNK_RECORDS):
        yield RecordChunk(index, first, None, table, [], 0.0)
        first += table.num_rows


_READERS: dict[FileKind, Callable[[int, RecordFile], Iterator[RecordChunk]]] = {
    "jsonl": _read_lines,
    "json": _read_json,
    "parquet": _read_parquet,
    "arrow": _read_dataset,
    "dataset": _read_dataset,
    "hub": _read_dataset,
}
