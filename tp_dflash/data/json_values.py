"""Records of a .json file: one array of objects, or objects one after the other over any number of lines.

In: a file. Out: each object's own bytes with its number, so that it is decoded where it is encoded. Memory holds about
one object at a time.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import IO

from tp_dflash.data.bad_record import DropReason
from tp_dflash.data.lines import MAX_LINE_BYTES

_BLOCK_BYTES = 1 << 20
_BLANKS = " \t\r\n"


def numbered_values(file: IO[bytes]) -> Iterator[tuple[int, bytes | tuple[DropReason, str]]]:
    """Top-level values, or the entries of a top-level array, counted from 1. Reading ends at the first damaged one."""
    buffer = _Buffer(file)
    in_array = buffer.skip(_BLANKS + "\ufeff") == "["
    if in_array:
        buffer.take(1)
    number = 0
    separators = _BLANKS + ("," if in_array else "")
    while (character := buffer.skip(separators)) and not (in_array and character == "]"):
        number += 1
        try:
            yield number, buffer.value().encode("utf-8", "surrogateescape")
        except (ValueError, RecursionError) as error:
            yield number, (DropReason.NOT_JSON, f"the rest of the file is not read: {error}"[:200])
            return
    if in_array and not character:
        yield number + 1, (DropReason.NOT_JSON, "expected ] at the end of the array, got the end of the file")


class _Buffer:
    """The part of a file's text that is being looked at."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._text = ""
        self._at = 0
        self._json = json.JSONDecoder()

    def skip(self, characters: str) -> str:
        """Move past these characters; return the next other one, or "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in characters:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more(_BLOCK_BYTES):
                return ""

    def take(self, count: int) -> None:
        self._at += count

    def value(self) -> str:
        """The text of the JSON value that starts here."""
        size = _BLOCK_BYTES
        while True:
            try:
                _, end = self._json.raw_decode(self._text, self._at)
            except json.JSONDecodeError:
                # Damaged, or not read to its end yet: twice as much is tried before it is called damaged.
                if len(self._text) - self._at > MAX_LINE_BYTES or not self._more(size):
                    raise
                size *= 2
                continue
            text = self._text[self._at : end]
            self._at = end
            return text

    def _more(self, size: int) -> bool:
        block = self._file.read(size)
        self._text = self._text[self._at :] + self._decoder.decode(block, final=not block)
        self._at = 0
        return bool(block)
