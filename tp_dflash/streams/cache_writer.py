"""Writes the features of a data set once, so that drafters can be trained on them without any target rank.

In: packs and a function that computes a layout's features. Out: files in a folder, all of a document in one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from tp_dflash.blocks import BlockLayout, FeatureBatch, Pack, eligible_anchors
from tp_dflash.streams.cache_files import CacheIndex, write_file

FILE_BYTES = 1 << 30


class FeatureCacheWriter:
    """One rank's files. Documents that an earlier, interrupted run has written are passed over.

    compute: fills a layout's features, such as a target's. num_documents: of the data set; further uses of a document have
    higher ids and the same features.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        num_documents: int,
        compute: Callable[[BlockLayout], FeatureBatch],
        file_bytes: int = FILE_BYTES,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._rank = rank
        self._num_documents = num_documents
        self._compute = compute
        self._file_bytes = file_bytes
        index = CacheIndex.read(folder)
        self._done = set(index.documents)
        self._tokens = set(index.tokens)
        self._number = sum(1 for _ in folder.glob(f"features-{rank:05d}-*.safetensors"))
        self._open = _OpenFile()

    def write(self, packs: Iterable[Pack], progress: Callable[[int], None] = lambda _: None) -> None:
        """Compute and write all packs; ``progress`` is told the number of each pack's tokens.

        A pack is computed whole, as in training: its features are then the very ones that it would be trained on.
        """
        for pack in packs:
            if any(document.document_id % self._num_documents not in self._done for document in pack.documents):
                layout = whole_layout(pack, self._tokens)
                self._add(layout, self._compute(layout))
            progress(pack.num_tokens)
        self._close()

    def _add(self, layout: BlockLayout, batch: FeatureBatch) -> None:
        starts = layout.pack.document_starts
        teacher_document_U = layout.pack.document_index_T[layout.teacher_row_U]
        for index, document in enumerate(layout.pack.documents):
            name = document.document_id % self._num_documents
            if name in self._done:
                continue
            self._done.add(name)
            finite = batch.finite_documents is None or bool(batch.finite_documents[index])
            features_SF = batch.features_TF[starts[index] : starts[index + 1]]
            self._open.add(name, features_SF, batch.teacher_hidden_UD[teacher_document_U == index], finite)
        self._open.add_embeddings(layout.anchor_tokens_A, batch.anchor_embeddings_AD)
        if self._open.num_bytes >= self._file_bytes:
            self._close()

    def _close(self) -> None:
        if self._open.documents:
            name = f"features-{self._rank:05d}-{self._number:05d}"
            write_file(self._folder, name, self._open.tensors(), self._open.documents, self._open.tokens)
            self._number += 1
        self._open = _OpenFile()


class _OpenFile:
    """What has been computed for the next file, on the CPU."""

    def __init__(self) -> None:
        self.documents: list[tuple[int, int, int, bool]] = []
        self.tokens: list[int] = []
        self.num_bytes = 0
        self._features: list[Tensor] = []
        self._teacher: list[Tensor] = []
        self._embeddings: list[Tensor] = []

    def add(self, name: int, features_SF: Tensor, teacher_ED: Tensor, finite: bool) -> None:
        self.documents.append((name, features_SF.shape[0], teacher_ED.shape[0], finite))
        self._keep(self._features, features_SF)
        self._keep(self._teacher, teacher_ED)

    def add_embeddings(self, tokens_A: Tensor, rows_AD: Tensor) -> None:
        self.tokens += tokens_A.tolist()
        self._keep(self._embeddings, rows_AD)

    def tensors(self) -> dict[str, Tensor]:
        return {
            "features_TF": torch.cat(self._features),
            "teacher_ED": torch.cat(self._teacher),
            "embedding_VD": torch.cat(self._embeddings),
        }

    def _keep(self, parts: list[Tensor], rows: Tensor) -> None:
        parts.append(rows.detach().to("cpu", copy=True))
        self.num_bytes += rows.numel() * rows.itemsize


def whole_layout(pack: Pack, known_tokens: set[int]) -> BlockLayout:
    """A layout that asks for all that any anchors of the pack could need: every possible teacher row, and the embedding of
    every possible anchor token that is not known yet (they become known here)."""
    starts = pack.document_starts
    rows = [
        eligible_anchors(document.loss_mask_S) + start for document, start in zip(pack.documents, starts, strict=False)
    ]
    row_E = torch.cat(rows)
    anchors = []
    for row, token in zip(row_E.tolist(), pack.tokens_T[row_E].tolist(), strict=True):
        if token not in known_tokens:
            known_tokens.add(token)
            anchors.append(row)
    anchor_A = torch.tensor(anchors, dtype=torch.int64)
    none = torch.empty(0, dtype=torch.int64)
    return BlockLayout(
        pack=pack,
        block_size=1,
        label_mode="same_position",
        anchor_A=anchor_A,
        anchor_document_A=pack.document_index_T[anchor_A],
        anchor_position_A=pack.position_T[anchor_A],
        labels_N=torch.zeros_like(anchor_A),
        valid_N=torch.zeros_like(anchor_A, dtype=torch.bool),
        teacher_row_U=row_E,
        teacher_index_N=torch.zeros_like(anchor_A) if len(anchor_A) else none,
    )
