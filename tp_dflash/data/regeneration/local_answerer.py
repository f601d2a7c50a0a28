"""Local models on one or several devices, each in a process of its own, fed with batches of prompts of like length.

In: conversations, lazily. Out: finished ones, a batch at a time. With one device the work is done in the caller's process.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from tp_dflash.data.regeneration.asked import AskedConversation
from tp_dflash.data.regeneration.local_model import LocalModel
from tp_dflash.data.regeneration.settings import SamplingSettings

_Filled = list[tuple[AskedConversation, str | None]]
# Batches are cut from so many conversations at a time, sorted by length.
_SORTED_BATCHES = 16

_model: LocalModel | None = None


@dataclass(frozen=True)
class LocalAnswerer:
    """devices: such as ("cuda:0", "cuda:1"); batch_size: conversations that a device answers together."""

    settings: SamplingSettings
    devices: tuple[str, ...] = ("cpu",)
    batch_size: int = 16
    dtype: str = "auto"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1 or not self.devices:
            raise ValueError(
                f"expected a device and a batch of at least 1, got {self.devices} and {self.batch_size}; correct "
                "--devices or --batch-size"
            )

    def fill(self, asked: Iterable[AskedConversation]) -> Generator[tuple[AskedConversation, str | None], None, None]:
        """Answer all; an error of a device's process is raised here."""
        batches = self._batches(iter(asked))
        if len(self.devices) == 1:
            model = LocalModel(self.settings, self.devices[0], self.dtype, self.trust_remote_code)
            for batch in batches:
                yield from model.fill(batch)
        else:
            yield from self._on_all_devices(batches)

    def _batches(self, asked: Iterator[AskedConversation]) -> Iterator[list[AskedConversation]]:
        window = self.batch_size * _SORTED_BATCHES
        order = random.Random(0)
        while conversations := list(itertools.islice(asked, window)):
            conversations.sort(key=_num_characters)
            starts = list(range(0, len(conversations), self.batch_size))
            # Not from short to long: what is there when a run is cut short should be like the whole.
            order.shuffle(starts)
            yield from (conversations[start : start + self.batch_size] for start in starts)

    def _on_all_devices(
        self, batches: Iterator[list[AskedConversation]]
    ) -> Iterator[tuple[AskedConversation, str | None]]:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        devices = context.Queue()
        for device in self.devices:
            devices.put(device)
        options = (self.settings, self.dtype, self.trust_remote_code)
        count = len(self.devices)
        with ProcessPoolExecutor(count, context, _start, (devices, *options)) as executor:
            pending: set[Future[_Filled]] = set()
            for batch in batches:
                pending.add(executor.submit(_fill, batch))
                if len(pending) > count:
                    yield from _first_done(pending)
            while pending:
                yield from _first_done(pending)


def _first_done(pending: set[Future[_Filled]]) -> Iterator[tuple[AskedConversation, str | None]]:
    done, _ = wait(pending, return_when=FIRST_COMPLETED)
    for future in done:
        pending.remove(future)
        yield from future.result()


def _num_characters(conversation: AskedConversation) -> int:
    return sum(len(message["content"]) for message in conversation.turns if message is not None)


def _start(devices: Any, settings: SamplingSettings, dtype: str, trust_remote_code: bool) -> None:
    global _model
    _model = LocalModel(settings, devices.get(), dtype, trust_remote_code)


def _fill(batch: list[AskedConversation]) -> _Filled:
    assert _model is not None
    return _model.fill(batch)
