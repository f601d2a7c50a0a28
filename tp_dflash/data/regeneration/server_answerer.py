"""Many conversations at once through one server: a fixed number of threads, each with one request at a time.

In: conversations, lazily. Out: finished ones in the order in which they finish. Never more than the given number are under
way, so memory does not depend on the number of records.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from tp_dflash.data.regeneration.asked import AskedConversation
from tp_dflash.data.regeneration.chat_server import AnswerError, ChatServer, RegenerationError

_Pending = dict[Future[str | None], AskedConversation]


class ServerAnswerer:
    """concurrency: requests at a time. After ``max_failures`` conversations in a row without an answer it gives up."""

    def __init__(self, server: ChatServer, concurrency: int = 32, max_failures: int = 50) -> None:
        if concurrency < 1:
            raise ValueError(f"expected at least one request at a time, got {concurrency}; raise --concurrency")
        self._server = server
        self._concurrency = concurrency
        self._max_failures = max_failures

    def fill(self, asked: Iterable[AskedConversation]) -> Generator[tuple[AskedConversation, str | None], None, None]:
        """RegenerationError if the server refuses everything or has gone. Leaving early ends what is under way."""
        failures = 0
        with ThreadPoolExecutor(self._concurrency) as threads:
            try:
                for conversation, failure in self._finished(threads, iter(asked)):
                    failures = failures + 1 if failure else 0
                    yield conversation, failure
                    self._check(failures, failure)
            finally:
                # Nothing is under way any more, unless this was left early: then nobody will read the answers.
                self._server.stop()

    def _finished(
        self, threads: ThreadPoolExecutor, asked: Iterator[AskedConversation]
    ) -> Iterator[tuple[AskedConversation, str | None]]:
        pending: _Pending = {}
        for conversation in asked:
            pending[threads.submit(self._answered, conversation)] = conversation
            if len(pending) == self._concurrency:
                yield from _first_done(pending)
        while pending:
            yield from _first_done(pending)

    def _answered(self, conversation: AskedConversation) -> str | None:
        """Fill one conversation; the reason if that failed."""
        try:
            while (prompt := conversation.next_prompt()) is not None:
                conversation.fill(self._server.answer(prompt, conversation.tools, conversation.answer_index))
        except AnswerError as error:
            return f"{error}"
        return None

    def _check(self, failures: int, last: str | None) -> None:
        if failures >= self._max_failures:
            raise RegenerationError(
                f"{self._server.url}: expected answers, got {failures} failures in a row, the last: {last}; look after the "
                "server and give the same command again"
            )


def _first_done(pending: _Pending) -> Iterator[tuple[AskedConversation, str | None]]:
    """Those that have finished, at least one; an error of a thread is raised here."""
    for future in wait(pending, return_when=FIRST_COMPLETED).done:
        yield pending.pop(future), future.result()
