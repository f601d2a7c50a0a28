"""The frozen model at work: packs in, features out.

In: a BlockLayout. Out: a FeatureBatch with the tapped layers' outputs, the teacher rows and the anchor embeddings of that
pack, padding removed. Documents run as right-padded rows of like length under plain causal attention: no packing and no
mask tensor, so recurrent and sliding-window targets are right too (a padding token stands after every real one of its row).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from tp_dflash.blocks import BlockLayout, FeatureBatch
from tp_dflash.config.target import TargetConfig
from tp_dflash.target.buckets import plan_buckets
from tp_dflash.target.facts import TargetFacts
from tp_dflash.target.loading import load_decoder
from tp_dflash.target.non_finite import empty_non_finite
from tp_dflash.target.taps import LayerTaps, decoder_layers


@dataclass(frozen=True, eq=False)
class _Forward:
    """One right-padded forward of R documents, S the longest, and where its rows go.

    tokens_RS: ids, padded. real_C: flat places in (R S) that are real tokens; pack_row_C: their rows in the pack.
    teacher_place_C, teacher_row_C: flat places of this forward's teacher rows, and their rows among U.
    """

    tokens_RS: Tensor
    real_C: Tensor
    pack_row_C: Tensor
    teacher_place_C: Tensor
    teacher_row_C: Tensor


class Target:
    """A frozen text decoder with taps on some layers; build it with ``Target.load``."""

    def __init__(
        self,
        decoder: nn.Module,
        facts: TargetFacts,
        layer_ids: Sequence[int],
        config: TargetConfig,
        device: torch.device,
        group: ProcessGroup | None = None,
    ) -> None:
        self.decoder = decoder
        self.facts = facts
        self.layer_ids = tuple(layer_ids)
        self.config = config
        self.device = device
        self.group = group
        self.taps = LayerTaps(decoder_layers(decoder, facts.num_layers), layer_ids)

    @staticmethod
    def load(
        config: TargetConfig,
        facts: TargetFacts,
        layer_ids: Sequence[int],
        device: torch.device,
        group: ProcessGroup | None = None,
    ) -> Target:
        """Load the decoder onto ``device`` and tap the layers; ValueError by name where that cannot be right.

        group: target ranks that share one decoder, for one that needs several GPUs. All of them run every forward: one calls
        ``features``, the others ``follow``, with the same layouts.
        """
        return Target(load_decoder(config, facts, device, group), facts, layer_ids, config, device, group)

    @property
    def feature_size(self) -> int:
        """F = K x D."""
        return len(self.layer_ids) * self.facts.hidden_size

    def embed(self, tokens: Tensor) -> Tensor:
        """What the model's embedding module gives for the token ids (its own scale included), one more axis of D."""
        with torch.inference_mode():
            return self.decoder.get_input_embeddings()(tokens.to(self.device))  # type: ignore[operator]

    def run(self, tokens_RS: Tensor, **arguments: Any) -> tuple[Tensor, Tensor, Any]:
        """One forward: (features_RSF, last hidden state times logit_scale RSD, the model's own output object).

        ``arguments`` (cache, position_ids, attention_mask) go to the decoder as they are; use_cache is off unless given.
        """
        features: list[Tensor] = []
        with torch.inference_mode(), self.taps.into(lambda tap, hidden_RSD: features.append(hidden_RSD)):
            output = self.decoder(input_ids=tokens_RS.to(self.device), **({"use_cache": False} | arguments))
            return torch.cat(features, dim=-1), self._teacher(output.last_hidden_state), output

    def empty_batch(self, layout: BlockLayout) -> FeatureBatch:
        """A batch of the layout's sizes whose contents are still to be written; normal tensors, fit for autograd."""
        width = self.facts.hidden_size
        return FeatureBatch(
            pack_id=layout.pack.pack_id,
            features_TF=self._unwritten(layout.pack.num_tokens, self.feature_size),
            teacher_hidden_UD=self._unwritten(layout.num_teacher_rows, width),
            anchor_embeddings_AD=self._unwritten(layout.num_blocks, width),
            finite_documents=torch.ones(len(layout.pack.documents), dtype=torch.bool, device=self.device),
        )

    def features(self, layout: BlockLayout, out: FeatureBatch | None = None) -> FeatureBatch:
        """Features of the layout's pack, each row written once into ``out`` (by default a new batch), which is returned.

        features_TF (T, K x D): output of tapped layer k at columns k x D on. teacher_hidden_UD: last hidden state after
        the final norm, times logit_scale, so that head @ row is the model's own logits. anchor_embeddings_AD: the
        embedding module's output. Documents with a non-finite row are zeroed and flagged in finite_documents. The
        result depends on the pack alone, bit for bit.
        """
        batch = self.empty_batch(layout) if out is None else out
        if not layout.pack.documents:
            return batch
        with torch.inference_mode():
            for forward in self._forwards(layout):
                self._run(forward, batch)
            batch.anchor_embeddings_AD.copy_(self.embed(self._moved(layout.anchor_tokens_A)))
            assert batch.finite_documents is not None
            batch.finite_documents.copy_(empty_non_finite(layout, batch))
        return batch

    def follow(self, layout: BlockLayout) -> None:
        """This rank's share of the forwards behind another rank's ``features`` of the same layout; nothing is kept."""
        if layout.pack.documents:
            with torch.inference_mode():
                for forward in self._forwards(layout):
                    self.decoder(input_ids=forward.tokens_RS, use_cache=False)

    def _run(self, forward: _Forward, batch: FeatureBatch) -> None:
        width = self.facts.hidden_size

        def write(tap: int, hidden_RSD: Tensor) -> None:
            columns = batch.features_TF[:, tap * width : (tap + 1) * width]
            _write_rows(columns, forward.pack_row_C, hidden_RSD.flatten(0, 1), forward.real_C)

        with self.taps.into(write):
            output = self.decoder(input_ids=forward.tokens_RS, use_cache=False)
        last_CD = output.last_hidden_state.flatten(0, 1).index_select(0, forward.teacher_place_C)
        batch.teacher_hidden_UD.index_copy_(
            0, forward.teacher_row_C, self._teacher(last_CD).to(batch.teacher_hidden_UD.dtype)
        )

    def _teacher(self, last_hidden: Tensor) -> Tensor:
        return last_hidden if self.facts.logit_scale == 1.0 else last_hidden * self.facts.logit_scale

    def _forwards(self, layout: BlockLayout) -> list[_Forward]:
        lengths = [document.num_tokens for document in layout.pack.documents]
        buckets = plan_buckets(lengths, self.config.tokens_per_forward, self.config.forward_overhead_tokens)
        return [self._forward(layout, bucket) for bucket in buckets]

    def _forward(self, layout: BlockLayout, bucket: list[int]) -> _Forward:
        pack = layout.pack
        longest = max(pack.documents[document].num_tokens for document in bucket)
        # Padding repeats token 0: any id would do, no real token can see it.
        tokens_RS = torch.zeros(len(bucket), longest, dtype=torch.int64)
        place_T = torch.full((pack.num_tokens,), -1, dtype=torch.int64)
        for row, document in enumerate(bucket):
            start, length = pack.document_starts[document], pack.documents[document].num_tokens
            tokens_RS[row, :length] = pack.documents[document].tokens_S
            place_T[start : start + length] = row * longest + torch.arange(length)
        pack_row_C = _rows_here(place_T)
        teacher_place_U = place_T[layout.teacher_row_U]
        teacher_row_C = _rows_here(teacher_place_U)
        parts = (tokens_RS, place_T[pack_row_C], pack_row_C, teacher_place_U[teacher_row_C], teacher_row_C)
        return _Forward(*(self._moved(part) for part in parts))

    def _moved(self, index: Tensor) -> Tensor:
        """To the device without waiting for the work already queued there."""
        return index.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else index

    def _unwritten(self, rows: int, width: int) -> Tensor:
        return torch.empty(rows, width, dtype=self.facts.dtype, device=self.device)


def _rows_here(place: Tensor) -> Tensor:
    return torch.nonzero(place >= 0).squeeze(-1)


def _write_rows(out: Tensor, out_rows: Tensor, source: Tensor, source_rows: Tensor) -> None:
    out.index_copy_(0, out_rows, source.index_select(0, source_rows).to(out.dtype))
