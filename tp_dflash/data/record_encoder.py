"""Records to documents: parse, render, tokenise, apply the length limit; a chunk of records at a time.

In: lines or rows. Out: token ids and loss masks of the documents they became, and for every other record the reason. The
same chunk gives the same result in any process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from tp_dflash.config.data import DataConfig
from tp_dflash.data.bad_record import BadRecordError, DropReason
from tp_dflash.data.chat_renderer import ChatRenderer
from tp_dflash.data.conversation import Conversation, PlainText, RawPair, Record, TokenIds
from tp_dflash.data.parse import parse_line, parse_object
from tp_dflash.data.text_encoder import Span, TextEncoder

Tokens = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class EncodedChunk:
    """Documents of a chunk end to end, in the order of their records.

    tokens, loss_mask: all documents' tokens (uint16 or uint32, and bool). lengths: tokens of each document. records:
    index in the chunk of the record each came from. problems: (index, reason, detail) of records that became none.
    end_of_turn: text that ends an assistant turn, None while no conversation was seen.
    """

    tokens: np.ndarray
    loss_mask: np.ndarray
    lengths: np.ndarray
    records: np.ndarray
    problems: list[tuple[int, DropReason, str]]
    num_truncated: int
    end_of_turn: str | None


class RecordEncoder:
    """A tokenizer with the settings that decide what becomes of a record.

    settings: what another process needs to build the same one. num_token_ids: ids lie below it. dtype: of stored tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: DataConfig) -> None:
        self.settings = (tokenizer, config)
        self._tokenizer = tokenizer
        self._config = config
        self._encoder = TextEncoder(tokenizer)
        self.num_token_ids = self._encoder.num_tokens_known
        self._renderer: ChatRenderer | None = None
        self.dtype = np.dtype(np.uint16 if self._encoder.num_tokens_known <= 1 << 16 else np.uint32)

    def encode(self, payloads: Sequence[bytes | dict[str, Any] | BadRecordError]) -> EncodedChunk:
        """Encode a chunk of JSON lines or decoded rows; a row that could not be decoded stays the error it is."""
        results = self._tokenise([self._read(payload) for payload in payloads])
        documents: list[Tokens] = []
        records: list[int] = []
        problems: list[tuple[int, DropReason, str]] = []
        num_truncated = 0
        for index, result in enumerate(results):
            pieces = result if isinstance(result, BadRecordError) else self._fitted(*result)
            if isinstance(pieces, BadRecordError):
                problems.append((index, pieces.reason, pieces.detail))
                continue
            documents += pieces
            records += [index] * len(pieces)
            num_truncated += not isinstance(result, BadRecordError) and len(result[0]) > self._config.max_length
        return EncodedChunk(
            tokens=_joined([tokens for tokens, _ in documents], self.dtype),
            loss_mask=_joined([loss_mask for _, loss_mask in documents], np.dtype(bool)),
            lengths=np.array([len(tokens) for tokens, _ in documents], dtype=np.int64),
            records=np.array(records, dtype=np.int64),
            problems=problems,
            num_truncated=num_truncated,
            end_of_turn=None if self._renderer is None else self._renderer.end_of_turn,
        )

    def _read(
        self, payload: bytes | dict[str, Any] | BadRecordError
    ) -> tuple[str, tuple[Span, ...]] | PlainText | TokenIds | BadRecordError:
        if isinstance(payload, BadRecordError):
            return payload
        try:
            pairs = self._config.template.pairs
            record = parse_line(payload, pairs) if isinstance(payload, bytes) else parse_object(payload, pairs)
            return self._prepared(record)
        except BadRecordError as error:
            return error.bare()

    def _prepared(self, record: Record) -> tuple[str, tuple[Span, ...]] | PlainText | TokenIds:
        if isinstance(record, TokenIds):
            self._check_ids(record.tokens)
            return record
        if isinstance(record, PlainText):
            _check_unicode(record.text)
            return record
        text, spans = self._raw_pair(record) if isinstance(record, RawPair) else self._chat(record)
        _check_unicode(text)
        return text, spans

    def _chat(self, conversation: Conversation) -> tuple[str, tuple[Span, ...]]:
        if self._renderer is None:
            self._renderer = ChatRenderer(self._tokenizer, self._config.template)
        return self._renderer.render(conversation)

    def _raw_pair(self, pair: RawPair) -> tuple[str, tuple[Span, ...]]:
        bos = str(self._tokenizer.bos_token or "") if self._encoder.adds_bos else ""
        eos = str(self._tokenizer.eos_token or "")
        completion = pair.completion if pair.completion.endswith(eos) else pair.completion + eos
        start = len(bos) + len(pair.prompt)
        text = bos + pair.prompt + completion
        return text, (Span(start, start, len(text)),)

    def _check_ids(self, tokens: list[int]) -> None:
        known = self._encoder.num_tokens_known
        wrong = next((token for token in tokens if not 0 <= token < known), None)
        if wrong is not None:
            raise BadRecordError(DropReason.TOKEN_ID_OUT_OF_RANGE, f"expected ids of 0..{known - 1}, got {wrong}")

    def _tokenise(self, prepared: list[Any]) -> list[Tokens | BadRecordError]:
        """One call of the tokenizer for all rendered texts of a chunk and one for all plain texts."""
        rendered = iter(self._encoder.encode_spans([item for item in prepared if isinstance(item, tuple)]))
        plain = iter(self._encoder.encode_texts([item.text for item in prepared if isinstance(item, PlainText)]))
        results: list[Tokens | BadRecordError] = []
        for item in prepared:
            if isinstance(item, BadRecordError):
                results.append(item)
            elif isinstance(item, TokenIds):
                results.append((np.array(item.tokens, dtype=np.int64), np.array(item.loss_mask, dtype=bool)))
            else:
                results.append(next(plain) if isinstance(item, PlainText) else next(rendered))
        return results

    def _fitted(self, tokens_S: np.ndarray, mask_S: np.ndarray) -> list[Tokens] | BadRecordError:
        """The documents a tokenised record gives under the length limit: one, or several if it is split."""
        limit = self._config.max_length
        if not mask_S.any():
            return BadRecordError(DropReason.NOTHING_SUPERVISED, f"none of {len(mask_S)} tokens is supervised")
        if not _has_anchor(mask_S):
            return BadRecordError(DropReason.NO_ANCHOR, f"no two adjacent tokens of {len(mask_S)} are supervised")
        if len(tokens_S) <= limit:
            return [(tokens_S, mask_S)]
        if self._config.over_length == "drop":
            return BadRecordError(DropReason.OVER_LENGTH, f"{len(tokens_S)} tokens, data.max_length is {limit}")
        stops = range(limit, len(tokens_S) + limit, limit) if self._config.over_length == "split" else [limit]
        pieces = [(tokens_S[stop - limit : stop], mask_S[stop - limit : stop]) for stop in stops]
        pieces = [piece for piece in pieces if _has_anchor(piece[1])]
        first = int(mask_S.argmax())
        detail = f"supervision starts at token {first} of {len(tokens_S)}, data.max_length is {limit}"
        return pieces or BadRecordError(DropReason.TRUNCATED_AWAY, detail)


def _has_anchor(mask_S: np.ndarray) -> bool:
    return bool((mask_S[:-1] & mask_S[1:]).any())


def _check_unicode(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRecordError(DropReason.BAD_UNICODE, f"half a character (a lone surrogate) at {error.start}") from None


def _joined(parts: list[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype=dtype)
