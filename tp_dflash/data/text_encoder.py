"""Text to token ids, and which tokens belong to which stretch of the text.

In: text cut at the places where supervision begins and ends. Out: ids, and a mask that is exact at the cuts. The
tokenizer's own padding, truncation and automatic special tokens are never applied to rendered conversations.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tp_dflash.data.bad_record import BadRecordError, DropReason

_SHORT, _REMEMBERED = 12, 10_000


class Span(NamedTuple):
    """A supervised stretch of a text, in characters.

    generated_from: where the model starts to write; between it and ``start`` lies only whitespace that a template puts
    in front, which a tokenizer may join with the first word. start, stop: the supervised characters; tail: how many of
    the last of them are the template's end of the turn.
    """

    generated_from: int
    start: int
    stop: int
    tail: int = 0

    def without_tail(self) -> Span:
        """The span of a turn that its writer did not end."""
        return self._replace(stop=self.stop - self.tail, tail=0)


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
        self._short: dict[str, list[int]] = {}
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
        pieces: list[str] = []
        blanks: list[int | None] = []
        last_pieces: list[int] = []
        for text, spans in texts:
            _cut(text, spans, pieces, blanks)
            last_pieces.append(len(pieces))
        ids = self._encode_pieces(pieces)
        # One array for the whole chunk: a Python list of masks would cost a fifth of the tokenizer's own time.
        length_P = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
        tokens = np.fromiter(itertools.chain.from_iterable(ids), dtype=np.int64, count=int(length_P.sum()))
        mask = np.repeat(np.array([blank is not None for blank in blanks], dtype=bool), length_P)
        stop_P = np.concatenate([[0], np.cumsum(length_P)])
        for index, blank in enumerate(blanks):
            if blank:
                mask[stop_P[index] : stop_P[index + 1]] = self._behind_blanks(pieces[index], blank)
        stops = [int(stop_P[last]) for last in last_pieces]
        return [
            self._finished(tokens[start:stop], mask[start:stop])
            for start, stop in zip([0, *stops], stops, strict=False)
        ]

    def _encode_pieces(self, pieces: list[str]) -> list[list[int]]:
        """Ids of each piece. Short pieces come again and again (what follows a last turn) and are remembered.

        Looked up once each: another thread may empty the memory between two looks.
        """
        known = [self._short.get(piece) if len(piece) <= _SHORT else None for piece in pieces]
        new = [piece for piece, ids in zip(pieces, known, strict=True) if ids is None]
        encoded = iter([encoding.ids for encoding in self._backend.encode_batch_fast(new, add_special_tokens=False)])
        ids = [next(encoded) if found is None else found for found in known]
        if len(self._short) > _REMEMBERED:
            self._short.clear()
        self._short.update((piece, found) for piece, found in zip(pieces, ids, strict=True) if len(piece) <= _SHORT)
        return ids

    def _behind_blanks(self, piece: str, blank: int) -> list[bool]:
        """True for all tokens of a supervised piece but those that lie wholly in its leading blanks."""
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
        return self._finished(np.array(encoding.ids, dtype=np.int64), mask_S)

    def _whole_text(self, encoding: Encoding) -> tuple[np.ndarray, np.ndarray]:
        tokens_S = np.array(encoding.ids, dtype=np.int64)
        return self._finished(tokens_S, np.array(encoding.special_tokens_mask, dtype=bool) ^ True)

    def _finished(self, tokens_S: np.ndarray, mask_S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A beginning-of-sequence token that was printed twice is reduced to one, which nobody predicts."""
        bos = self._bos_token_id
        if bos is None or len(tokens_S) == 0 or tokens_S[0] != bos:
            return tokens_S, mask_S
        extra = 0
        while extra + 1 < len(tokens_S) and tokens_S[extra + 1] == bos:
            extra += 1
        tokens_S, mask_S = tokens_S[extra:], mask_S[extra:].copy()
        mask_S[0] = False
        return tokens_S, mask_S

    def _cuts_freely(self) -> bool:
        """Whether a text may be encoded in pieces. Tokenizers that mark the start of every text (Llama 2) forbid it."""
        pieces = ["user\n", "ok", "\nassistant\n", " fine", "\n", "ok"]
        together = self._backend.encode("".join(pieces), add_special_tokens=False).ids
        apart = [id_ for piece in pieces for id_ in self._backend.encode(piece, add_special_tokens=False).ids]
        return together == apart


def _cut(text: str, spans: tuple[Span, ...], pieces: list[str], blanks: list[int | None]) -> None:
    """Add the pieces of a text, each with None, or if supervised with the number of its leading template blanks."""
    end = 0
    for span in spans:
        if span.generated_from > end:
            pieces.append(text[end : span.generated_from])
            blanks.append(None)
        pieces.append(text[span.generated_from : span.stop])
        blanks.append(span.start - span.generated_from)
        end = span.stop
    if end < len(text):
        pieces.append(text[end:])
        blanks.append(None)
