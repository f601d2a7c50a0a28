"""Encodes chunks of records in several processes, in order, with a bounded number of chunks in memory.

In: an encoder and an iterator of chunks. Out: each chunk with its encoding, in the order they came. The caller's own
process works until the others have started, and with 0 workers to the end; the result is the same.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType

from tp_dflash.data.reader import RecordChunk
from tp_dflash.data.record_encoder import EncodedChunk, RecordEncoder
from tp_dflash.data.record_file import RecordFile

# Below this many bytes starting processes takes longer than the work.
_WORTH_A_POOL = 16 << 20
_MOST_WORKERS = 16
_QUEUED_PER_WORKER = 3

_encoder: RecordEncoder | None = None


def default_num_workers(files: list[RecordFile]) -> int:
    """No process for little data, else one a core."""
    sizes_known = all(file.num_bytes for file in files)
    if sizes_known and sum(file.num_bytes for file in files) < _WORTH_A_POOL:
        return 0
    return min(_MOST_WORKERS, len(os.sched_getaffinity(0)))


class EncoderPool:
    """Use as a context manager. An error in a worker is raised in the caller; queued chunks are then given up."""

    def __init__(self, encoder: RecordEncoder, num_workers: int) -> None:
        self._encoder = encoder
        self._num_workers = num_workers
        self._executor: ProcessPoolExecutor | None = None
        self._starting: list[Future[bool]] = []

    def __enter__(self) -> EncoderPool:
        if self._num_workers > 0:
            # forkserver: the caller may hold threads and devices that a plain fork would break.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([__name__])
            self._executor = ProcessPoolExecutor(
                self._num_workers,
                mp_context=context,
                initializer=_start_worker,
                initargs=(self._encoder.settings,),
            )
            self._starting = [self._executor.submit(_is_ready) for _ in range(self._num_workers)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def encode(self, chunks: Iterator[RecordChunk]) -> Iterator[tuple[RecordChunk, EncodedChunk]]:
        """Encode all chunks, lazily and in order."""
        queued: deque[tuple[RecordChunk, Future[EncodedChunk]]] = deque()
        for chunk in chunks:
            if self._executor is None or not all(future.done() for future in self._starting):
                yield chunk, self._encoder.encode(chunk.payloads())
                continue
            queued.append((chunk, self._executor.submit(_encode_in_worker, chunk)))
            if len(queued) >= _QUEUED_PER_WORKER * self._num_workers:
                first, future = queued.popleft()
                yield first, future.result()
        for first, future in queued:
            yield first, future.result()


def _start_worker(settings: tuple) -> None:
    global _encoder
    # Processes are the parallelism here: the tokenizer would start a thread a core in each of them.
    os.putenv("TOKENIZERS_PARALLELISM", "false")
    _encoder = RecordEncoder(*settings)


def _is_ready() -> bool:
    return _encoder is not None


def _encode_in_worker(chunk: RecordChunk) -> EncodedChunk:
    assert _encoder is not None
    return _encoder.encode(chunk.payloads())
