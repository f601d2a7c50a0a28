"""What both ends of a stream have in common: an error on this side reaches the other side before this one is gone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class StreamEnd(ABC):
    """A context manager; leaving it by an error tells the ranks on the other side."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Tell every rank on the other side that this one ends, and why; waits at most a few seconds in all."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(error)
