"""Encodes chunks of records several at a time, in order, with a bounded number of chunks in memory.

In: an encoder and an iterator of chunks. Out: each chunk with its encoding, in the order they came. With 0 workers two
threads of the caller's process take turns: while one reads and renders, the tokenizer's own threads work for the other.
The result is the same.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from types import TracebackType

from tp_dflash.data.reader import RecordChunk
from tp_dflash.data.record_encoder import EncodedChunk, RecordEncoder
from tp_dflash.data.record_file import RecordFile

# Below this many bytes starting processes takes longer than the work.
_WORTH_A_POOL = 16 << 20
_MOST_WORKERS = 16
# On fewer cores a process costs more (a chunk pickled twice, an interpreter each) than its own core brings.
_FEWEST_CORES = 4
_THREADS = 2
_QUEUED_PER_WORKER = 3

_encoder: RecordEncoder | None = None


def default_num_workers(files: list[RecordFile]) -> int:
    """One process a core; none for little data, nor on few cores, which the tokenizer's own threads fill."""
    sizes_known = all(file.num_bytes for file in files)
    if sizes_known and sum(file.num_bytes for file in files) < _WORTH_A_POOL:
        return 0
    cores = len(os.sched_getaffinity(0))
    return 0 if cores < _FEWEST_CORES else min(_MOST_WORKERS, cores)


class EncoderPool:
    """Use as a context manager. An error in a worker is raised in the caller; queued chunks are then given up."""

    def __init__(self, encoder: RecordEncoder, num_workers: int) -> None:
        self._most_queued = _QUEUED_PER_WORKER * (num_workers or _THREADS)
        self._executor: Executor
        self._encode: Callable[[RecordChunk], EncodedChunk]
        if num_workers == 0:
            self._executor = ThreadPoolExecutor(_THREADS)
            self._encode = lambda chunk: encoder.encode(chunk.payloads())
            return
        # forkserver: the caller may hold threads and devices that a plain fork would break.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._executor = ProcessPoolExecutor(num_workers, context, _start_worker, (encoder.settings,))
        self._encode = _encode_in_worker

    def __enter__(self) -> EncoderPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._executor.shutdown(cancel_futures=True)

    def encode(self, chunks: Iterator[RecordChunk]) -> Iterator[tuple[RecordChunk, EncodedChunk]]:
        """Encode all chunks, lazily and in order."""
        queued: deque[tuple[RecordChunk, Future[EncodedChunk]]] = deque()
        for chunk in chunks:
            queued.append((chunk, self._executor.submit(self._encode, chunk)))
            if len(queued) >= self._most_queued:
                first, future = queued.popleft()
                yield first, future.result()
        for first, future in queued:
            yield first, future.result()


def _start_worker(settings: tuple) -> None:
    global _encoder
    # Processes are the parallelism here: the tokenizer would start a thread a core in each of them.
    os.putenv("TOKENIZERS_PARALLELISM", "false")
    _encoder = RecordEncoder(*settings)


def _encode_in_worker(chunk: RecordChunk) -> EncodedChunk:
    assert _encoder is not None
    return _encoder.encode(chunk.payloads())
