"""How fast preparing is beside the tokenizer alone: ``python -m tp_dflash.data.prepare_benchmark --tokenizer FOLDER``.

Writes made-up conversations into a temporary folder, tokenises their rendered texts with the bare tokenizer on all cores,
prepares the same file with the default settings, and prints the ratio of the two speeds and the peak memory of all
processes together.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import tempfile
import threading
import time
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from tp_dflash.config.data import DataConfig
from tp_dflash.data.prepare import prepare_store

_WORDS = Path(__file__).with_name("batch_plan.py").read_text(encoding="utf-8").split()
_BATCH = 256


def write_conversations(path: Path, count: int, seed: int = 0) -> None:
    """Conversations of one to three turns, about 250 tokens each in the mean."""
    drawn = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            messages = []
            for _ in range(drawn.choice([1, 1, 1, 2, 3])):
                for role, mean in (("user", 25), ("assistant", 75)):
                    words = drawn.choices(_WORDS, k=1 + int(drawn.expovariate(1 / mean)))
                    messages.append({"role": role, "content": " ".join(words)})
            file.write(json.dumps({"messages": messages}) + "\n")


def tokenizer_alone(tokenizer: PreTrainedTokenizerFast, path: Path) -> tuple[dict[str, tuple[float, float]], int]:
    """(Seconds, processor seconds) of the tokenizer on rendered texts, which are ready before, by the way it is called.

    Its own call is what scripts use; the fastest call of its backend makes nothing but ids.
    """
    spent = {"tokenizer(texts)": (0.0, 0.0), "fastest call": (0.0, 0.0)}
    tokens = 0
    with path.open(encoding="utf-8") as file:
        while lines := list(itertools.islice(file, _BATCH)):
            chats = [json.loads(line)["messages"] for line in lines]
            texts = [str(tokenizer.apply_chat_template(chat, tokenize=False)) for chat in chats]
            for name, (seconds, processor) in spent.items():
                start, used = time.perf_counter(), time.process_time()
                if name == "fastest call":
                    encodings = tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
                    tokens += sum(len(encoding.ids) for encoding in encodings)
                else:
                    tokenizer(texts, add_special_tokens=False)
                spent[name] = (seconds + time.perf_counter() - start, processor + time.process_time() - used)
    return spent, tokens


class Usage:
    """Memory and processor time of this process and those it starts, sampled while the block runs.

    peak_bytes: proportional memory of all together. processor_seconds: of all, without what was used before.
    """

    def __enter__(self) -> Usage:
        self.peak_bytes = 0
        self._seconds: dict[int, float] = {}
        self._before = sum(_processor_seconds(process) for process in _family())
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._sample()

    @property
    def processor_seconds(self) -> float:
        return sum(self._seconds.values()) - self._before

    def _watch(self) -> None:
        while not self._done.wait(3.0):
            self._sample()

    def _sample(self) -> None:
        family = _family()
        self.peak_bytes = max(self.peak_bytes, sum(map(_proportional_bytes, family)))
        self._seconds.update((process, _processor_seconds(process)) for process in family)


def _family() -> list[int]:
    """This process and all below it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents[int(entry.name)] = int(fields[1])
    family = [os.getpid()]
    for process in family:
        family += [child for child, parent in parents.items() if parent == process]
    return family


def _stat(process: int) -> list[str]:
    """Fields of a process from its state on; none if it has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def _processor_seconds(process: int) -> float:
    fields = _stat(process)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _proportional_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--conversations", type=int, default=100_000)
    arguments = parser.parse_args()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(arguments.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chats.jsonl"
        write_conversations(path, arguments.conversations)
        alone, tokens = tokenizer_alone(tokenizer, path)
        start = time.perf_counter()
        with Usage() as usage:
            splits = prepare_store(DataConfig(train=[str(path)]), tokenizer, Path(folder) / "prepared")
        spent, processor = time.perf_counter() - start, usage.processor_seconds
    print("                   seconds  processor seconds  tokens/s")
    for name, (wall, used) in {**alone, "prepare": (spent, processor)}.items():
        print(f"{name:16} {wall:9.1f} {used:18.1f} {tokens / wall:9,.0f}")
    for name, (wall, used) in alone.items():
        print(f"speed of prepare / {name}: {wall / spent:.2f} ({used / processor:.2f} by processor time)")
    print(f"{splits.train.num_tokens:,} tokens, peak memory of all processes {usage.peak_bytes / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
