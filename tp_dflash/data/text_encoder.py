"""Text to token ids, and which tokens belong to which stretch of the text.

In: text cut at the places where supervision begins and ends. Out: ids, and a mask that is exact at the cuts. The
tokenizer's own padding, truncation and automatic special tokens are never applied to rendered conversations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tp_dflash.data.bad_record import BadRecordError, DropReason


@dataclass(frozen=True)
class Span:
    """A supervised stretch of a text, in characters.

    generated_from: where the model starts to write; between it and ``start`` lies only whitespace that a template puts
    in front, which a tokenizer may join with the first word. start, stop: the supervised characters.
    """

    generated_from: int
    start: int
    stop: int


class TextEncoder:
    """A fast tokenizer without its surroundings.

    num_tokens_known: ids 0 .. num_tokens_known - 1 exist. cuts_freely: a text may be encoded in pieces. adds_bos: plain
    texts get a beginning-of-sequence token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise ValueError(
                f"expected a fast tokenizer (with a tokenizer.json), got {type(tokenizer).__name__}; convert it and "
                "set data.tokenizer to the new folder"
            )
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_padding()
        self._backend.no_truncation()
        self.num_tokens_known = len(tokenizer)
        self._bos_token_id: int | None = tokenizer.bos_token_id
        self.cuts_freely = self._cuts_freely()
        with_special = self._backend.encode("a", add_special_tokens=True).ids
        self.adds_bos = self._bos_token_id is not None and with_special[:1] == [self._bos_token_id]

    def encode_texts(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Plain texts with the special tokens that the tokenizer adds by itself; those are not supervised."""
        return [self._whole_text(encoding) for encoding in self._backend.encode_batch(texts, add_special_tokens=True)]

    def encode_spans(
        self, texts: list[tuple[str, tuple[Span, ...]]]
    ) -> list[tuple[np.ndarray, np.ndarray] | BadRecordError]:
        """Ids and mask of rendered texts. Spans ascend and do not overlap."""
        if not self.cuts_freely:
            encodings = self._backend.encode_batch([text for text, _ in texts], add_special_tokens=False)
            return [self._by_offsets(encoding, *text) for encoding, text in zip(encodings, texts, strict=True)]
        pieces, owners = [], []
        for index, (text, spans) in enumerate(texts):
            for piece, blank in _cut(text, spans):
                pieces.append(piece)
                owners.append((index, blank))
        encodings = self._backend.encode_batch_fast(pieces, add_special_tokens=False)
        tokens: list[list[int]] = [[] for _ in texts]
        masks: list[list[bool]] = [[] for _ in texts]
        for (index, blank), encoding, piece in zip(owners, encodings, pieces, strict=True):
            ids = encoding.ids
            tokens[index] += ids
            masks[index] += [False] * len(ids) if blank is None else self._span_mask(piece, blank, len(ids))
        return [self._finished(ids, mask) for ids, mask in zip(tokens, masks, strict=True)]

    def _span_mask(self, piece: str, blank: int, num_ids: int) -> list[bool]:
        """True for all tokens of a supervised piece but those that lie wholly in its leading blanks."""
        if blank == 0:
            return [True] * num_ids
        return [stop > blank for _, stop in self._backend.encode(piece, add_special_tokens=False).offsets]

    def _by_offsets(
        self, encoding: Encoding, text: str, spans: tuple[Span, ...]
    ) -> tuple[np.ndarray, np.ndarray] | BadRecordError:
        """Mask of a text encoded as a whole: tokens that overlap a span, which may stick out over whitespace only."""
        offset_S2 = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        start_S, stop_S = offset_S2[:, 0], offset_S2[:, 1]
        mask_S = np.zeros(len(offset_S2), dtype=bool)
        for span in spans:
            inside_S = (stop_S > span.start) & (start_S < span.stop)
            if inside_S.any():
                first, last = int(start_S[inside_S].min()), int(stop_S[inside_S].max())
                if text[first : span.start].strip() or text[span.stop : last].strip():
                    around = text[min(first, span.start) : max(last, span.stop)]
                    return BadRecordError(
                        DropReason.MASK_NOT_EXACT, f"a token crosses the edge of a turn: {around!r:.80}"
                    )
            mask_S |= inside_S
        return self._finished(encoding.ids, mask_S.tolist())

    def _whole_text(self, encoding: Encoding) -> tuple[np.ndarray, np.ndarray]:
        return self._finished(encoding.ids, [not special for special in encoding.special_tokens_mask])

    def _finished(self, ids: list[int], mask: list[bool]) -> tuple[np.ndarray, np.ndarray]:
        """Arrays. A beginning-of-sequence token that was printed twice is reduced to one, which nobody predicts."""
        bos = self._bos_token_id
        extra = 0
        while bos is not None and len(ids) > extra + 1 and ids[extra] == ids[extra + 1] == bos:
            extra += 1
        if len(ids) > extra and ids[extra] == bos:
            mask[extra] = False
        return np.array(ids[extra:], dtype=np.int64), np.array(mask[extra:], dtype=bool)

    def _cuts_freely(self) -> bool:
        """Whether a text may be encoded in pieces. Tokenizers that mark the start of every text (Llama 2) forbid it."""
        pieces = ["user\n", "ok", "\nassistant\n", " fine", "\n", "ok"]
        together = self._backend.encode("".join(pieces), add_special_tokens=False).ids
        apart = [id_ for piece in pieces for id_ in self._backend.encode(piece, add_special_tokens=False).ids]
        return together == apart


def _cut(text: str, spans: tuple[Span, ...]) -> list[tuple[str, int | None]]:
    """Pieces of a text with None, or for a supervised piece the number of leading blanks that are the template's."""
    pieces: list[tuple[str, int | None]] = []
    end = 0
    for span in spans:
        pieces.append((text[end : span.generated_from], None))
        pieces.append((text[span.generated_from : span.stop], span.start - span.generated_from))
        end = span.stop
    pieces.append((text[end:], None))
    return [(piece, blank) for piece, blank in pieces if piece]
