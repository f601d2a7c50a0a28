"""Answers that the target itself writes: what a drafter for that target should be trained on.

In: anyone's conversations, of which only the questions count. Out: a JSONL file that prepare reads, every line with the
settings its words were sampled with.
"""

from tp_dflash.data.regeneration.answer_file import AnswerFile
from tp_dflash.data.regeneration.chat_server import AnswerError, ChatServer, RegenerationError
from tp_dflash.data.regeneration.local_answerer import LocalAnswerer
from tp_dflash.data.regeneration.regenerate import Regeneration, RegenerationCounts
from tp_dflash.data.regeneration.server_answerer import ServerAnswerer
from tp_dflash.data.regeneration.settings import SamplingSettings

__all__ = [
    "AnswerError",
    "AnswerFile",
    "ChatServer",
    "LocalAnswerer",
    "Regeneration",
    "RegenerationCounts",
    "RegenerationError",
    "SamplingSettings",
    "ServerAnswerer",
]
