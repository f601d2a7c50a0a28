"""``tp-dflash bench prepare``: preparing beside the tokenizer alone, on the same text and the same cores, in turn.

In: a tokenizer, a number of conversations. Out: ``PrepareResults``. The tokenizer is given rendered texts that are ready in
memory and what it returns is thrown away; preparing reads, parses, templates, masks, tokenises, checks and writes.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from tp_dflash.bench.made_up_conversations import write_conversations
from tp_dflash.bench.prepare_results import CALL, FASTEST, PREPARE, PrepareResults, Timing
from tp_dflash.bench.prepare_usage import Usage
from tp_dflash.config.data import DataConfig
from tp_dflash.data import prepare_store

# As `datasets` hands texts to a tokenizer when it maps.
_BATCH = 1000


def measure_preparing(tokenizer_name: str, conversations: int, repeats: int, folder: Path) -> PrepareResults:
    """``repeats`` rounds, each the tokenizer's own call, preparing, and its backend's fastest call, over all texts."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_name)
    path = folder / "chats.jsonl"
    write_conversations(path, conversations)
    results = PrepareResults(conversations)
    calls: dict[str, Callable[[list[str]], object]] = {
        CALL: lambda texts: tokenizer(texts, add_special_tokens=False),
        FASTEST: lambda texts: [
            encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ],
    }
    for repeat in range(repeats):
        results.timings.append(_tokenizer_alone(CALL, calls[CALL], tokenizer, path))
        with Usage() as usage:
            splits = prepare_store(DataConfig(train=[str(path)]), tokenizer, folder / f"prepared-{repeat}")
        results.timings.append(Timing(PREPARE, usage.seconds, usage.processor_seconds))
        results.peak_bytes = max(results.peak_bytes, usage.peak_bytes)
        results.tokens = splits.train.num_tokens
        results.timings.append(_tokenizer_alone(FASTEST, calls[FASTEST], tokenizer, path))
    return results


def _tokenizer_alone(
    name: str, call: Callable[[list[str]], object], tokenizer: PreTrainedTokenizerFast, path: Path
) -> Timing:
    seconds = processor_seconds = 0.0
    for texts in _rendered(tokenizer, path):
        start, used = time.perf_counter(), time.process_time()
        call(texts)
        seconds += time.perf_counter() - start
        processor_seconds += time.process_time() - used
    return Timing(name, seconds, processor_seconds)


def _rendered(tokenizer: PreTrainedTokenizerFast, path: Path) -> Iterator[list[str]]:
    with path.open(encoding="utf-8") as file:
        while lines := list(itertools.islice(file, _BATCH)):
            chats = [json.loads(line)["messages"] for line in lines]
            yield [str(tokenizer.apply_chat_template(chat, tokenize=False)) for chat in chats]
