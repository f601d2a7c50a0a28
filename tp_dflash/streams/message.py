"""The words that travel beside a payload: a header from target to drafter, a receipt back.

In: a block layout (both sides make the same one for the same pack). Out: fixed-size uint8 tensors on the host, and back.
What a header states is everything by which the receiver can tell that the payload is the pack it expects.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields
from enum import IntEnum

import torch
from torch import Tensor

from tp_dflash.blocks import BlockLayout

_MAGIC = 0x7D_F1A5_4001
_NUM_WORDS = 16
_NUM_TEXT = 8192
MESSAGE_BYTES = 8 * _NUM_WORDS + _NUM_TEXT


class State(IntEnum):
    """data: a payload follows. empty: the pack has no documents. failed: the sender ends, its text says why.

    taken: the receiver has the pack. refused: it is not the pack that the receiver expected; its text says why.
    """

    DATA = 1
    EMPTY = 2
    FAILED = 3
    TAKEN = 4
    REFUSED = 5


@dataclass(frozen=True)
class Message:
    """Header or receipt. layout_key: checksum of the pack's tokens, anchors and teacher rows.

    waited_us: how long the sender has waited for its peers so far, in microseconds.
    """

    state: State
    pack_id: int = -1
    epoch: int = -1
    num_tokens: int = 0
    num_teacher_rows: int = 0
    num_anchors: int = 0
    num_documents: int = 0
    layout_key: int = 0
    waited_us: int = 0
    text: str = ""

    @staticmethod
    def about(layout: BlockLayout, state: State | None = None, waited_us: int = 0) -> Message:
        """The message that belongs to a layout; by default its header, data or empty."""
        return Message(
            state=(State.DATA if layout.pack.documents else State.EMPTY) if state is None else state,
            pack_id=layout.pack.pack_id,
            epoch=layout.pack.epoch,
            num_tokens=layout.pack.num_tokens,
            num_teacher_rows=layout.num_teacher_rows,
            num_anchors=layout.num_blocks,
            num_documents=len(layout.pack.documents),
            layout_key=_layout_key(layout),
            waited_us=waited_us,
        )

    @property
    def name(self) -> str:
        return f"pack {self.pack_id} of epoch {self.epoch}"

    def differences(self, expected: Message) -> str:
        """What differs from the expected message, in words; empty if it is the expected one."""
        passing = {"waited_us", "text"}
        pairs = [
            (field.name, getattr(expected, field.name), getattr(self, field.name))
            for field in fields(Message)
            if field.name not in passing
        ]
        return ", ".join(f"{name} {wanted} (got {got})" for name, wanted, got in pairs if wanted != got)

    def encode(self) -> Tensor:
        """(MESSAGE_BYTES,) uint8; of a text that is too long the end is kept, where a traceback says what happened."""
        text = self.text.encode()[-_NUM_TEXT:]
        numbers = [int(getattr(self, field.name)) for field in fields(Message) if field.name != "text"]
        words = torch.zeros(_NUM_WORDS, dtype=torch.int64)
        words[: 2 + len(numbers)] = torch.tensor([_MAGIC, len(text), *numbers])
        encoded = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8)
        encoded[: 8 * _NUM_WORDS] = words.view(torch.uint8)
        if text:
            encoded[8 * _NUM_WORDS : 8 * _NUM_WORDS + len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return encoded

    @staticmethod
    def decode(encoded: Tensor) -> Message:
        """ValueError if the bytes are not a message of this version."""
        magic, length, state, *numbers = encoded[: 8 * _NUM_WORDS].view(torch.int64).tolist()
        if magic != _MAGIC or state not in list(State) or not 0 <= length <= _NUM_TEXT:
            raise ValueError(
                f"expected a message of this version, got words {magic:#x} and {state}; run one version of tp_dflash on all nodes"
            )
        text = bytes(encoded[8 * _NUM_WORDS : 8 * _NUM_WORDS + length].tolist()).decode(errors="replace")
        names = [field.name for field in fields(Message) if field.name not in ("state", "text")]
        return Message(state=State(state), text=text, **dict(zip(names, numbers, strict=False)))


def _layout_key(layout: BlockLayout) -> int:
    """CRC-32 over what both sides derive: equal sizes alone would not tell one shuffle of the data from another."""
    key = 0
    for part in (layout.pack.tokens_T, layout.pack.document_index_T, layout.anchor_A, layout.teacher_row_U):
        key = zlib.crc32(part.contiguous().numpy().data, key) if part.numel() else key
    return key
