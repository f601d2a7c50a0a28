"""Sources to a prepared folder: read, encode in several processes, write; and account for every record.

In: the data configuration and a tokenizer. Out: a folder that ``open_store`` reads on every rank. One rank prepares; the
result does not depend on the number of workers. Documents keep the order of their records.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from transformers import PreTrainedTokenizerBase

from tp_dflash.config.data import DataConfig
from tp_dflash.data.bad_record import DropReason
from tp_dflash.data.encoder_pool import EncoderPool, default_num_workers
from tp_dflash.data.fingerprint import fingerprint
from tp_dflash.data.preparation_report import PreparationReport
from tp_dflash.data.reader import RecordChunk, read_chunks
from tp_dflash.data.record_encoder import EncodedChunk, RecordEncoder
from tp_dflash.data.record_file import RecordFile, list_record_files
from tp_dflash.data.splits import DataSplits, open_store, read_about
from tp_dflash.data.store_writer import TRAIN, VALIDATION, StoreWriter


@dataclass(frozen=True)
class PrepareProgress:
    """How far a preparation is. fraction: share of the bytes of all files, where their sizes are known."""

    records: int
    documents: int
    tokens: int
    fraction: float


ProgressCallback = Callable[[PrepareProgress], None]


def prepare_store(
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    progress: ProgressCallback | None = None,
) -> DataSplits:
    """Prepare ``folder`` unless it already holds exactly this data, and open it.

    Raises ValueError where nothing can be trained on, where the chat template does not print what the assistant says,
    and with ``config.strict`` at the first bad line.
    """
    name = fingerprint(config, tokenizer)
    about = read_about(folder)
    if about is not None and about["fingerprint"] == name:
        return open_store(folder)
    encoder = RecordEncoder(tokenizer, config)
    train_files, validation_files = list_record_files(config.train), list_record_files(config.validation)
    files = train_files + validation_files
    num_workers = default_num_workers(files) if config.num_workers is None else config.num_workers
    folder.parent.mkdir(parents=True, exist_ok=True)
    with StoreWriter(folder, encoder.dtype, encoder.num_token_ids, config.validation_fraction) as writer:
        with writer.open_text("bad_lines.jsonl") as bad_lines, EncoderPool(encoder, num_workers) as pool:
            run = _Run(config, files, len(train_files), writer, bad_lines, progress)
            for chunk, encoded in pool.encode(read_chunks(files)):
                run.take(chunk, encoded)
        writer.split_off()
        run.report.splits = writer.counts()
        run.check()
        about = {"fingerprint": name, "report": run.report.to_json(), "options": config.model_dump(mode="json")}
        writer.finish([file.path for file in files], [file.weight for file in files], about)
    return open_store(folder)


class _Run:
    """One preparation under way."""

    def __init__(
        self,
        config: DataConfig,
        files: list[RecordFile],
        num_train_files: int,
        writer: StoreWriter,
        bad_lines: IO[str],
        progress: ProgressCallback | None,
    ) -> None:
        self.report = PreparationReport()
        self._config = config
        self._files = files
        self._num_train_files = num_train_files
        self._writer = writer
        self._bad_lines = bad_lines
        self._progress = progress
        self._num_documents = 0
        self._num_tokens = 0
        self._first_problem = ""
        self._sizes = [max(1, file.num_bytes) for file in files]

    def take(self, chunk: RecordChunk, encoded: EncodedChunk) -> None:
        """Write a chunk's documents, count its records, list its bad ones."""
        split = TRAIN if chunk.file_index < self._num_train_files else VALIDATION
        lines = [chunk.number(index) for index in encoded.records.tolist()]
        self._writer.append(split, chunk.file_index, lines, encoded.tokens, encoded.loss_mask, encoded.lengths)
        problems = [(chunk.number(index), reason, detail) for index, reason, detail in encoded.problems]
        for line, reason, detail in sorted([*chunk.problems, *problems]):
            self._drop(self._files[chunk.file_index].path, line, reason, detail)
        used = len(set(lines))
        self.report.used_records += used
        self.report.records += used + len(problems) + len(chunk.problems)
        self.report.truncated += encoded.num_truncated
        if encoded.end_of_turn is not None:
            self.report.end_of_turn = encoded.end_of_turn
        self._num_documents += len(lines)
        self._num_tokens += len(encoded.tokens)
        if self._progress is not None:
            index = chunk.file_index
            done = (sum(self._sizes[:index]) + chunk.file_fraction * self._sizes[index]) / sum(self._sizes)
            self._progress(PrepareProgress(self.report.records, self._num_documents, self._num_tokens, done))

    def _drop(self, path: str, line: int, reason: DropReason, detail: str) -> None:
        if self._config.strict and reason.is_fault:
            raise ValueError(f"{path}:{line}: {reason}: {detail}; correct the line or set data.strict = false")
        self.report.drop(reason)
        self._first_problem = self._first_problem or f"{path}:{line}: {reason}: {detail}"
        entry = {"file": path, "line": line, "reason": reason.value, "detail": detail}
        self._bad_lines.write(json.dumps(entry) + "\n")

    def check(self) -> None:
        """An error where there is nothing to train on; without validation documents training goes as well."""
        if self.report.splits[TRAIN].documents:
            return
        cut = sum(self.report.dropped.get(reason, 0) for reason in (DropReason.TRUNCATED_AWAY, DropReason.OVER_LENGTH))
        advice = f"raise data.max_length ({self._config.max_length})" if cut else "correct the files"
        first = f" (the first: {self._first_problem})" if self._first_problem else ""
        raise ValueError(
            f"expected documents to train on from data.train, got none: {self.report.summary()}{first}; {advice} or "
            "data.train"
        )
