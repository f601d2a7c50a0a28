"""Reading a zstandard file by lines, with damage and a cut-off end told as for the other compressions."""

from __future__ import annotations

import io
from typing import IO, Any

_BLOCK_BYTES = 1 << 16


def open_zstandard(file: IO[bytes], mode: str) -> io.BufferedReader:
    """Unpack an open file; needs the package zstandard."""
    try:
        import zstandard
    except ImportError:
        raise ValueError(
            f"expected the package zstandard to read {file.name}, got none; pip install zstandard, or unpack the file"
        ) from None
    return io.BufferedReader(_Frames(file, zstandard))


class _Frames(io.RawIOBase):
    """The content of all frames of a file, one after the other. EOFError where a frame is damaged or incomplete.

    The package's own reader does neither: it ends quietly in the middle of a frame.
    """

    def __init__(self, file: IO[bytes], zstandard: Any) -> None:
        self._file = file
        self._zstandard = zstandard
        self._frame: Any = None
        self._packed = b""
        self._content = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._content:
            self._packed = self._packed or self._file.read(_BLOCK_BYTES)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("the last frame is not complete")
                return 0
            self._content = memoryview(self._unpack())
        size = min(len(buffer), len(self._content))
        buffer[:size] = self._content[:size]
        self._content = self._content[size:]
        return size

    def _unpack(self) -> bytes:
        if self._frame is None:
            self._frame = self._zstandard.ZstdDecompressor().decompressobj()
        try:
            content = self._frame.decompress(self._packed)
        except self._zstandard.ZstdError as error:
            raise EOFError(f"{error}") from None
        self._packed = self._frame.unused_data if self._frame.eof else b""
        if self._frame.eof:
            self._frame = None
        return bytes(content)
