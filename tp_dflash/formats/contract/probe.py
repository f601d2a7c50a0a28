"""What the weights themselves say about how they were trained: the drafter's loss on text under other readings.

A folder of others has no record, and a config can be wrong in ways that no arithmetic shows: ids of neighbouring layers, a
base of the rotary frequencies, a flag. A trained drafter predicts real text best when it is run as it was trained. So the
same blocks are drafted as config.json says and under each other reading; a reading that is clearly better is a fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from tp_dflash.blocks import AnchorCaps, BlockGeometry, BlockLayout, Document, Pack
from tp_dflash.drafter import DrafterShape
from tp_dflash.formats.contract.finding import Finding
from tp_dflash.formats.published_drafter import PublishedDrafter
from tp_dflash.target import Target

_COMMON_BASES = (1e4, 1e5, 5e5, 1e6, 5e6, 1e7)
_NUM_BLOCKS = 160
_CHUNK_ROWS = 512
# A better reading must save this share of the loss, this many standard errors beyond chance.
_MIN_GAIN, _MIN_SIGMA = 0.02, 3.0
# Above this share of ln(V) a drafter has learnt too little for its loss to tell readings apart.
_LEARNT = 0.8


@dataclass(frozen=True, eq=False)
class Reading:
    """One way to run the drafter: the subject it belongs to, what it would mean, and the drafter read so."""

    subject: str
    meaning: str
    drafter: PublishedDrafter
    layer_shift: int = 0


def probed_layer_ids(shape: DrafterShape) -> list[int]:
    """Layers whose outputs the probe needs: the tapped ones and their neighbours, ascending."""
    near = {layer_id + shift for layer_id in shape.target_layer_ids for shift in (-1, 0, 1)}
    return sorted(layer_id for layer_id in near if 0 <= layer_id <= shape.num_target_layers - 2)


def probe(
    drafter: PublishedDrafter, target: Target, head_VD: Tensor, documents: Sequence[Document]
) -> Iterator[Finding]:
    """A finding a subject. target: loaded with taps on ``probed_layer_ids``; documents: text with supervised tokens."""
    blocks = _Blocks.of(drafter.shape, target, documents)
    written = blocks.loss_A(Reading("", "", drafter), head_VD)
    others = [(reading, blocks.loss_A(reading, head_VD)) for reading in readings(drafter, target.facts.rotary_base)]
    best = min(float(loss_A.mean()) for loss_A in (written, *(loss_A for _, loss_A in others)))
    chance = float(torch.tensor(float(head_VD.shape[0])).log())
    if best > _LEARNT * chance:
        figure = f"loss {best:.2f} of {chance:.2f} by chance on {len(written)} blocks: too little learnt to tell"
        yield Finding("readings of the weights", figure)
        return
    for subject in dict.fromkeys(reading.subject for reading, _ in others):
        yield _judge(subject, written, [(reading, loss_A) for reading, loss_A in others if reading.subject == subject])


def readings(drafter: PublishedDrafter, target_base: float | None) -> Iterator[Reading]:
    """Every other way to run these weights that has been met in the wild."""
    shape, tensors = drafter.shape, drafter.tensors
    for shift in (-1, 1):
        ids = [layer_id + shift for layer_id in shape.target_layer_ids]
        if ids[0] >= 0 and ids[-1] <= shape.num_target_layers - 2:
            yield Reading("layer ids on text", f"ids {ids}", drafter, shift)
    for base in sorted({*_COMMON_BASES, target_base or 1e4} - {shape.rope_theta}):
        yield _reshaped("rotary base on text", f"rope_theta {base:g}", drafter, rope_theta=base)
    if shape.sliding_window is not None:
        turned = not shape.sliding_causal
        yield _reshaped("causality on text", f"causal = {str(turned).lower()}", drafter, sliding_causal=turned)
    mode = "next_token" if shape.label_mode == "same_position" else "same_position"
    yield _reshaped("label mode on text", f"label_mode {mode}", drafter, label_mode=mode)
    pairs = {"projections": ("q_proj", "k_proj"), "head norms": ("q_norm", "k_norm")}
    for what, (first, second) in pairs.items():
        if tensors[f"layers.0.self_attn.{first}.weight"].shape == tensors[f"layers.0.self_attn.{second}.weight"].shape:
            swapped = PublishedDrafter(shape, _swapped(tensors, first, second))
            yield Reading("query and key on text", f"their {what} swapped", swapped)


def _reshaped(subject: str, meaning: str, drafter: PublishedDrafter, **changes: object) -> Reading:
    shape = replace(drafter.shape, **changes)  # type: ignore[arg-type]
    return Reading(subject, meaning, PublishedDrafter(shape, drafter.tensors))


def _swapped(tensors: Mapping[str, Tensor], first: str, second: str) -> dict[str, Tensor]:
    other = {first: second, second: first}
    return {
        name: tensors[name.replace(f".{part}.", f".{other[part]}.")]
        if (part := name.split(".")[-2]) in other
        else tensor
        for name, tensor in tensors.items()
    }


def _judge(subject: str, written: Tensor, others: list[tuple[Reading, Tensor]]) -> Finding:
    reading, loss_A = min(others, key=lambda other: float(other[1].mean()))
    gain_A = written - loss_A
    gain, error = float(gain_A.mean()), float(gain_A.std() / len(gain_A) ** 0.5)
    wrong = gain > _MIN_GAIN * float(written.mean()) and gain > _MIN_SIGMA * error
    figure = f"loss {float(written.mean()):.3f} as written, {float(loss_A.mean()):.3f} with {reading.meaning}"
    return Finding(
        subject, figure, f"the weights were trained with {reading.meaning}: correct config.json" if wrong else None
    )


@dataclass(frozen=True, eq=False)
class _Blocks:
    """The same blocks for every reading. wide_TF: outputs of all probed layers; labels by distance from the anchor."""

    pack: Pack
    layout: BlockLayout
    layer_ids: tuple[int, ...]
    wide_TF: Tensor
    anchor_embeddings_AD: Tensor
    mask_embedding_D: Tensor

    @staticmethod
    def of(shape: DrafterShape, target: Target, documents: Sequence[Document]) -> _Blocks:
        pack = Pack(pack_id=0, epoch=0, documents=tuple(documents))
        layout = BlockLayout.build(pack, AnchorCaps(per_pack=_NUM_BLOCKS), seed=0, block_size=shape.block_size)
        if layout.num_blocks < 2 or shape.block_size < 3:
            raise ValueError(
                f"expected text on which at least two blocks of three tokens can be drafted, got {layout.num_blocks} blocks "
                f"of {shape.block_size}; give more data"
            )
        features = target.features(layout)
        mask_D = target.embed(torch.tensor([shape.mask_token_id]))[0]
        return _Blocks(pack, layout, target.layer_ids, features.features_TF, features.anchor_embeddings_AD, mask_D)

    def loss_A(self, reading: Reading, head_VD: Tensor) -> Tensor:
        """Mean cross-entropy of each block's valid predicted tokens under a reading, fp32 on the CPU."""
        shape, device = reading.drafter.shape, self.wide_TF.device
        drafter = reading.drafter.build(attention="sdpa").to(device)
        width = shape.hidden_size
        places = [self.layer_ids.index(layer_id + reading.layer_shift) for layer_id in shape.target_layer_ids]
        features = torch.cat([self.wide_TF[:, place * width : (place + 1) * width] for place in places], dim=-1)
        layout = self.layout
        geometry = BlockGeometry.build(
            self.pack.document_index_T,
            self.pack.position_T,
            layout.anchor_document_A,
            layout.anchor_position_A,
            shape.block_size,
        )
        with torch.inference_mode():
            hidden_ND = drafter(features, self.anchor_embeddings_AD, self.mask_embedding_D, geometry.to(device))
            loss_N = torch.cat([self._loss(rows, head_VD, part, shape) for rows, part in self._parts(hidden_ND)])
        # A block position that predicts nothing under this reading has loss 0 and does not count.
        loss_AB = loss_N.view(layout.num_blocks, shape.block_size).cpu()
        valid_AB = self._labels(shape)[1].view(layout.num_blocks, shape.block_size)
        counted_A = valid_AB.any(-1)
        return ((loss_AB * valid_AB).sum(-1) / valid_AB.sum(-1))[counted_A]

    def _parts(self, hidden_ND: Tensor) -> Iterator[tuple[Tensor, slice]]:
        for start in range(0, hidden_ND.shape[0], _CHUNK_ROWS):
            part = slice(start, start + _CHUNK_ROWS)
            yield hidden_ND[part], part

    def _loss(self, hidden_CD: Tensor, head_VD: Tensor, part: slice, shape: DrafterShape) -> Tensor:
        labels_C = self._labels(shape)[0][part].to(hidden_CD.device)
        return F.cross_entropy((hidden_CD.to(head_VD.dtype) @ head_VD.T).float(), labels_C, reduction="none")

    def _labels(self, shape: DrafterShape) -> tuple[Tensor, Tensor]:
        """Labels and validity of every row under the shape's label mode; both modes compare positions 1..B-2."""
        layout = self.layout
        shift = 1 - shape.first_predicted
        k_N = torch.arange(shape.block_size).repeat(layout.num_blocks)
        index_N = layout.anchor_A.repeat_interleave(shape.block_size) + k_N + shift
        last = self.pack.num_tokens - 1
        # Valid under both readings: the token itself and the one after it are supervised and inside the document.
        valid_N = layout.valid_N & torch.roll(layout.valid_N, -1) & (k_N >= 1) & (k_N < shape.block_size - 1)
        return self.pack.tokens_T[index_N.clamp(max=last)], valid_N
