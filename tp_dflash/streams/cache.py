"""Features from files, with the receiver's interface: drafter ranks train without any target rank.

In: a folder that FeatureCacheWriter filled, layouts as they are expected. Out: feature batches in a preallocated buffer, in
the dtype in which they were computed. Files are read by a thread while the step before is computed.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from tp_dflash.blocks import BlockLayout, FeatureBatch, eligible_anchors
from tp_dflash.streams.cache_files import CacheIndex, DocumentRows, is_complete
from tp_dflash.streams.errors import StreamError, check_announced
from tp_dflash.streams.meters import StreamMeters
from tp_dflash.streams.payload import PayloadShapes, Slot, payload

_PACKS_AHEAD = 2


@dataclass(frozen=True, eq=False)
class _Read:
    """A pack's features in main memory."""

    features: list[Tensor]
    teacher: list[Tensor]
    embeddings_AD: Tensor
    finite: list[bool]


class CachedFeatures:
    """Reads each pack when it is expected. A batch stays valid until the next call of ``receive``."""

    def __init__(
        self, folder: Path, identity: dict[str, Any], num_documents: int, shapes: PayloadShapes, device: torch.device
    ) -> None:
        """identity: what the cache must have been made from; num_documents: of the data set (see FeatureCacheWriter)."""
        if not is_complete(folder, identity):
            raise ValueError(
                f"expected cached features in {folder}, got no complete cache; write it with tp-dflash cache"
            )
        index = CacheIndex.read(folder)
        self._documents = index.documents
        self._num_documents = num_documents
        self._slot = Slot(shapes, device)
        self._files: dict[Path, Any] = {}
        self._embedding_VD, self._row_of_token = self._read_embeddings(index)
        self._thread = ThreadPoolExecutor(1)
        self._announced: deque[BlockLayout] = deque()
        self._reading: deque[tuple[BlockLayout, Future[_Read]]] = deque()
        self._started = time.monotonic()
        self._waited = 0.0
        self._packs = self._empty_packs = self._bytes = 0

    def expect(self, layout: BlockLayout) -> None:
        """Announce a pack; it is read as soon as no more than one other waits to be used."""
        self._announced.append(layout)
        self._read_ahead()

    def receive(self, layout: BlockLayout) -> FeatureBatch:
        """The features of the pack that was expected first; waits until they are read."""
        check_announced(layout, self._reading[0][0] if self._reading else None)
        _, future = self._reading.popleft()
        started = time.monotonic()
        read = future.result()
        self._waited += time.monotonic() - started
        self._read_ahead()
        if not layout.pack.documents:
            self._empty_packs += 1
            return self._slot.filled(layout)
        self._write(read, self._slot.batch(layout))
        batch = self._slot.filled(layout)
        self._packs += 1
        self._bytes += sum(part.numel() * part.itemsize for part in payload(batch))
        return batch

    def finish(self) -> None:
        """Nothing is in flight."""

    def meters(self) -> StreamMeters:
        """drafter_waited: seconds waited for the disk."""
        elapsed = time.monotonic() - self._started
        return StreamMeters(self._packs, self._empty_packs, self._bytes, elapsed, 0.0, self._waited)

    def __enter__(self) -> CachedFeatures:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._files.clear()

    def _read_ahead(self) -> None:
        while self._announced and len(self._reading) < _PACKS_AHEAD:
            layout = self._announced.popleft()
            self._reading.append((layout, self._thread.submit(self._read, layout)))

    def _read(self, layout: BlockLayout) -> _Read:
        features, teacher, finite = [], [], []
        wanted_document_U = layout.pack.document_index_T[layout.teacher_row_U]
        wanted_position_U = layout.pack.position_T[layout.teacher_row_U]
        for index, document in enumerate(layout.pack.documents):
            rows = self._documents[document.document_id % self._num_documents]
            kept_E = eligible_anchors(document.loss_mask_S)
            self._check(document.document_id, rows, document.num_tokens, len(kept_E))
            features.append(self._slice(rows.file, "features_TF", rows.token_start, rows.num_tokens))
            position_U = wanted_position_U[wanted_document_U == index]
            teacher_ED = self._slice(rows.file, "teacher_ED", rows.teacher_start, rows.num_teacher_rows)
            teacher.append(teacher_ED[torch.searchsorted(kept_E, position_U)])
            finite.append(rows.finite)
        row_A = torch.tensor(
            [self._row_of_token[token] for token in layout.anchor_tokens_A.tolist()], dtype=torch.int64
        )
        return _Read(features, teacher, self._embedding_VD[row_A], finite)

    def _write(self, read: _Read, batch: FeatureBatch) -> None:
        token = row = 0
        for features_SF, teacher in zip(read.features, read.teacher, strict=True):
            batch.features_TF[token : token + len(features_SF)].copy_(features_SF)
            batch.teacher_hidden_UD[row : row + len(teacher)].copy_(teacher)
            token, row = token + len(features_SF), row + len(teacher)
        batch.anchor_embeddings_AD.copy_(read.embeddings_AD)
        assert batch.finite_documents is not None
        batch.finite_documents.copy_(torch.tensor(read.finite))

    def _slice(self, path: Path, name: str, start: int, count: int) -> Tensor:
        return self._opened(path).get_slice(name)[start : start + count]

    def _opened(self, path: Path) -> Any:
        """Files stay open: they are mapped into memory, not read."""
        if path not in self._files:
            self._files[path] = safe_open(path, framework="pt").__enter__()
        return self._files[path]

    def _read_embeddings(self, index: CacheIndex) -> tuple[Tensor, dict[int, int]]:
        """The embeddings of all anchor tokens of the data set, one row each."""
        paths = sorted({path for path, _ in index.tokens.values()})
        tables = {path: self._opened(path).get_tensor("embedding_VD") for path in paths}
        rows = [tables[path][row] for path, row in index.tokens.values()]
        table_VD = torch.stack(rows) if rows else torch.empty(0, self._slot.anchor_embeddings_AD.shape[1])
        return table_VD, {token: row for row, token in enumerate(index.tokens)}

    def _check(self, document_id: int, rows: DocumentRows, num_tokens: int, num_teacher_rows: int) -> None:
        if (rows.num_tokens, rows.num_teacher_rows) != (num_tokens, num_teacher_rows):
            raise StreamError(
                f"document {document_id}: expected features of {num_tokens} tokens and {num_teacher_rows} teacher rows, got "
                f"{rows.num_tokens} and {rows.num_teacher_rows}; the data has changed: write the cache anew"
            )
