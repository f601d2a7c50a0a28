"""Has the target write the answers to all records of some sources, in any order, until every one is in the file.

In: sources, someone who answers, a file. Out: counts. Records that are answered in the file already are passed over, so the
same command goes on where it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tp_dflash.config.data import SourceConfig
from tp_dflash.data.bad_record import BadRecordError
from tp_dflash.data.parse import decode_line
from tp_dflash.data.reader import read_chunks
from tp_dflash.data.record_file import list_record_files
from tp_dflash.data.regeneration.answer_file import AnswerFile
from tp_dflash.data.regeneration.asked import AskedConversation, read_asked

Filled = Generator[tuple[AskedConversation, str | None], None, None]


@dataclass(frozen=True)
class RegenerationCounts:
    """records: read so far, of which bad ask nothing. Of answers: found were there before, answered now, or failed.

    cut_off: answered, but ended by max_tokens. tokens: written in this run, as far as they were told.
    """

    records: int = 0
    found: int = 0
    answered: int = 0
    cut_off: int = 0
    failed: int = 0
    bad: int = 0
    tokens: int = 0


class Answerer(Protocol):
    """Fills conversations; yields each when it is complete, with None or the reason why it could not be."""

    def fill(self, asked: Iterable[AskedConversation]) -> Filled: ...


class Regeneration:
    """One run over the sources. limit: only the first so many records. answers: to each of them. counts: so far."""

    def __init__(
        self, sources: list[SourceConfig], output: AnswerFile, limit: int | None = None, answers: int = 1
    ) -> None:
        self.counts = RegenerationCounts()
        self._files = list_record_files(sources)
        self._output = output
        self._limit = limit
        self._answers = answers

    def run(
        self, answerer: Answerer, progress: Callable[[RegenerationCounts], None] | None = None
    ) -> RegenerationCounts:
        """Answer what is missing. ``progress`` is called after every conversation."""
        # Closed at once, whatever happens: what is under way must not outlive the run.
        with contextlib.closing(answerer.fill(self._missing())) as filled:
            for asked, failure in filled:
                self._take(asked, failure)
                if progress is not None:
                    progress(self.counts)
        return self.counts

    def _take(self, asked: AskedConversation, failure: str | None) -> None:
        if failure is None:
            self._output.add(asked)
            cut_off = asked.done[-1].get("finish_reason") == "length"
            self._count(answered=1, cut_off=int(cut_off), tokens=asked.num_tokens)
        else:
            self._output.add_failure(asked.where, failure)
            self._count(failed=1)

    def _missing(self) -> Iterator[AskedConversation]:
        """Conversations without an answer in the file, lazily."""
        for number, where, payload in self._records():
            self._count(records=1)
            try:
                if isinstance(payload, BadRecordError):
                    raise payload
                value = decode_line(payload) if isinstance(payload, bytes) else payload
                asked = read_asked(value, number, where)
            except BadRecordError as error:
                self._output.add_failure(where, f"{error}")
                self._count(bad=1)
                continue
            for answer_index in range(self._answers):
                one = asked.another(answer_index)
                if self._output.has(one):
                    self._count(found=1)
                else:
                    yield one

    def _records(self) -> Iterator[tuple[int, str, bytes | dict[str, Any] | BadRecordError]]:
        """What could not even be read comes with the number of the record before it: it has no number of its own."""
        number = 0
        for chunk in read_chunks(self._files):
            payloads: list[Any] = list(chunk.payloads())
            for index, payload in enumerate(payloads):
                number += 1
                if self._limit is not None and number > self._limit:
                    return
                yield number, f"{self._files[chunk.file_index].path}:{chunk.number(index)}", payload
            for line, reason, detail in chunk.problems:
                yield number, f"{self._files[chunk.file_index].path}:{line}", BadRecordError(reason, detail)

    def _count(self, **changes: int) -> None:
        sums = {name: getattr(self.counts, name) + change for name, change in changes.items()}
        self.counts = replace(self.counts, **sums)
