"""Why a record is not trained on: every reason by name, so that counts, lists and messages agree."""

from __future__ import annotations

from enum import StrEnum


class DropReason(StrEnum):
    """Reasons in the order in which they can come up on a record's way. ``is_fault``: the record itself is wrong."""

    BLANK_LINE = "blank_line"
    LINE_TOO_LONG = "line_too_long"
    NOT_UTF8 = "not_utf8"
    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    UNREADABLE_FILE = "unreadable_file"
    UNKNOWN_FIELDS = "unknown_fields"
    BAD_FIELD = "bad_field"
    EMPTY_CONVERSATION = "empty_conversation"
    BAD_MESSAGE = "bad_message"
    UNKNOWN_ROLE = "unknown_role"
    NON_TEXT_CONTENT = "non_text_content"
    NO_ASSISTANT_TURN = "no_assistant_turn"
    EMPTY_ASSISTANT_TURN = "empty_assistant_turn"
    EMPTY_TEXT = "empty_text"
    BAD_UNICODE = "bad_unicode"
    TEMPLATE_ERROR = "template_error"
    MASK_NOT_EXACT = "mask_not_exact"
    TOKEN_ID_OUT_OF_RANGE = "token_id_out_of_range"
    NOTHING_SUPERVISED = "nothing_supervised"
    OVER_LENGTH = "over_length"
    TRUNCATED_AWAY = "truncated_away"
    NO_ANCHOR = "no_anchor"

    @property
    def is_fault(self) -> bool:
        """False where a good record merely does not fit this run's settings or has too little to train on."""
        return self not in _NOT_FAULTS


_NOT_FAULTS = (DropReason.OVER_LENGTH, DropReason.TRUNCATED_AWAY, DropReason.NO_ANCHOR)


class BadRecordError(ValueError):
    """One record cannot be trained on. Raised while a record is read, counted by whoever reads the file."""

    def __init__(self, reason: DropReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def bare(self) -> BadRecordError:
        """The same without its traceback, which would keep the record's texts alive: for errors that are kept."""
        return BadRecordError(self.reason, self.detail)
