"""The file that answers are added to: whole lines only, and on a second start what is missing.

In: finished conversations. Out: a JSONL file that prepare reads. A process that is killed leaves at most one half line at
the end, which the next start removes; nothing is written twice.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from tp_dflash.data.regeneration.asked import AskedConversation
from tp_dflash.data.regeneration.settings import SamplingSettings

_BLOCK_BYTES = 1 << 20


class AnswerFile:
    """Use as a context manager. ``keys``: what each finished conversation, by record and answer, was asked."""

    def __init__(self, path: Path, settings: SamplingSettings) -> None:
        self.path = path
        self.failures_path = path.with_name(f"{path.name}.failed")
        self._settings = settings
        self.keys: dict[tuple[int, int], str] = {}

    def __enter__(self) -> AnswerFile:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._cut_half_line()
        with self.path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                self._read(number, line)
        self._failures = self.failures_path.open("w", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.fsync(self._descriptor)
        os.close(self._descriptor)
        self._failures.close()
        if self.failures_path.stat().st_size == 0:
            self.failures_path.unlink()

    def has(self, asked: AskedConversation) -> bool:
        """Whether this conversation is answered already; an error if its number was asked something else."""
        key = self.keys.get((asked.record_number, asked.answer_index))
        if key is not None and key != asked.key:
            raise ValueError(
                f"{self.path}: expected the answer to {asked.where} under number {asked.record_number}, got one to something "
                "else: the sources have changed; choose another output"
            )
        return key is not None

    def add(self, asked: AskedConversation) -> None:
        """Write one line, at once and whole."""
        record = {**asked.to_record(), "generation": self._settings.to_json()}
        if self._settings.template_arguments:
            record["chat_template_kwargs"] = self._settings.template_arguments
        line = (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "replace")
        written = 0
        while written < len(line):
            written += os.write(self._descriptor, line[written:])
        self.keys[asked.record_number, asked.answer_index] = asked.key

    def add_failure(self, where: str, reason: str) -> None:
        """List a record that got no answer in this run; the next run tries it again."""
        self._failures.write(json.dumps({"source": where, "reason": reason}) + "\n")
        self._failures.flush()

    def _cut_half_line(self) -> None:
        """Remove what follows the last line feed."""
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        while end:
            start = max(0, end - _BLOCK_BYTES)
            block = os.pread(self._descriptor, end - start, start)
            if (at := block.rfind(b"\n")) >= 0:
                end = start + at + 1
                break
            end = start
        os.ftruncate(self._descriptor, end)

    def _read(self, number: int, line: str) -> None:
        try:
            record: Any = json.loads(line)
            self.keys[record["id"], record.get("answer", 0)] = record["key"]
            generation = record["generation"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{self.path}:{number}: expected a line that regenerate wrote, got {line[:60]!r}; choose another output"
            ) from None
        if generation != self._settings.to_json():
            raise ValueError(
                f"{self.path}:{number}: expected answers sampled with {self._settings.to_json()}, got {generation}; use "
                "the same settings to go on, or choose another output"
            )
