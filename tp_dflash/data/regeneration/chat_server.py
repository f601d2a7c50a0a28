"""An OpenAI-compatible server (vLLM, SGLang) asked for one answer at a time, with patience and with limits.

In: messages. Out: an Answer. What may pass (a lost connection, a stall, a cut-off reply, an overloaded server) is tried
again with growing pauses; what will not (a wrong address, key or model) ends the run; what concerns one conversation alone
(it is too long) is a failure of that one.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

from tp_dflash.data.regeneration.asked import Answer
from tp_dflash.data.regeneration.settings import SamplingSettings

_READ_BYTES = 1 << 16
_LONGEST_PAUSE = 60.0
# A run with the next seed must not get this run's second answers again.
_SEED_STRIDE = 1_000_003


class AnswerError(Exception):
    """No answer to this conversation."""


class RegenerationError(Exception):
    """No answer to any conversation: the run cannot go on."""


class _PassingError(Exception):
    """May go away by itself. pause: seconds that the server asks to be left alone."""

    def __init__(self, message: str, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause


class ChatServer:
    """One address, asked by any number of threads."""

    def __init__(
        self,
        url: str,
        settings: SamplingSettings,
        timeout: float = 600.0,
        retries: int = 5,
        first_pause: float = 1.0,
        api_key: str | None = None,
    ) -> None:
        """url: with or without /v1. timeout: seconds for a whole answer. retries: further attempts after the first.

        first_pause: seconds before the second attempt; it doubles with each, and varies by half so that callers spread.
        """
        address = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        if not address.hostname or address.scheme not in ("http", "https"):
            raise ValueError(f"expected an address such as http://localhost:8000, got {url!r}; correct --server")
        self.url = url
        self.settings = settings
        self._address = address
        self._timeout = timeout
        self._retries = retries
        self._first_pause = first_pause
        self._api_key = api_key
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._open: set[http.client.HTTPConnection] = set()

    def stop(self) -> None:
        """End all requests and pauses at once; whoever waits for an answer gets AnswerError."""
        self._stopped.set()
        with self._lock:
            for connection in self._open:
                if connection.sock is not None:
                    with contextlib.suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)

    def answer(self, messages: list[dict[str, Any]], tools: Any = None, answer_index: int = 0) -> Answer:
        """Ask until there is an answer. AnswerError if there will be none, RegenerationError if there will be none at all.

        answer_index: several answers to the same messages are sampled with seeds of their own.
        """
        body = json.dumps(self._request(messages, tools, answer_index)).encode("utf-8", "replace")
        for attempt in range(self._retries + 1):
            try:
                return _read_answer(self._post(body))
            except _PassingError as error:
                reason = f"{error}"
                pause = max(error.pause, self._first_pause * 2**attempt * random.uniform(0.5, 1.5))
            if attempt < self._retries:
                self._stopped.wait(min(pause, _LONGEST_PAUSE))
                self._check_running()
        raise AnswerError(f"{reason} (after {self._retries + 1} attempts)")

    def _request(self, messages: list[dict[str, Any]], tools: Any, answer_index: int) -> dict[str, Any]:
        settings = self.settings.to_json()
        settings.pop("thinking", None)
        if self.settings.seed is not None:
            settings["seed"] = self.settings.seed + answer_index * _SEED_STRIDE
        request = {**settings, "messages": messages, "stream": False}
        if tools is not None:
            # The answers to be written are words: tools are shown, not called.
            request |= {"tools": tools, "tool_choice": "none"}
        if self.settings.template_arguments:
            request["chat_template_kwargs"] = self.settings.template_arguments
        return request

    def _post(self, body: bytes) -> Any:
        """The decoded reply; _PassingError where another attempt may help."""
        headers = {"Content-Type": "application/json"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        path = self._address.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1")
        with self._connected() as connection:
            try:
                connection.connect()
                # ``stop`` could not end a connection that was not made yet.
                self._check_running()
                connection.request("POST", f"{path}/v1/chat/completions", body, headers)
                response = connection.getresponse()
                content = _read_in_time(response, time.monotonic() + self._timeout)
            except TimeoutError:
                raise _PassingError(f"no whole reply within {self._timeout:g} s") from None
            except (OSError, http.client.HTTPException) as error:
                raise _PassingError(f"{type(error).__name__}: {error}") from None
        if response.status != 200:
            self._raise_status(response.status, content, response.getheader("Retry-After"))
        try:
            return json.loads(content)
        except ValueError:
            raise _PassingError(f"a reply that is not JSON: {content[:60]!r}") from None

    def _check_running(self) -> None:
        if self._stopped.is_set():
            raise AnswerError("the run was ended")

    @contextlib.contextmanager
    def _connected(self) -> Iterator[http.client.HTTPConnection]:
        kind = http.client.HTTPSConnection if self._address.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._address.hostname or "", self._address.port, timeout=self._timeout)
        with self._lock:
            self._open.add(connection)
        try:
            yield connection
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _raise_status(self, status: int, content: bytes, retry_after: str | None) -> None:
        detail = f"status {status}: {content[:200].decode('utf-8', 'replace')}"
        if status in (408, 409, 425, 429) or status >= 500:
            pause = float(retry_after) if retry_after is not None and retry_after.isdigit() else 0.0
            raise _PassingError(detail, pause)
        if status in (401, 403, 404, 405):
            raise RegenerationError(
                f"{self.url}: expected an answer, got {detail}; correct --server, --model or the API key"
            )
        raise AnswerError(detail)


def _read_in_time(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """The whole body. A server that sends a byte now and then does not count as alive."""
    parts = []
    while part := response.read1(_READ_BYTES):
        parts.append(part)
        if time.monotonic() > deadline:
            raise TimeoutError
    content = b"".join(parts)
    expected = response.getheader("Content-Length")
    if expected is not None and len(content) < int(expected):
        raise http.client.IncompleteRead(content, int(expected) - len(content))
    return content


def _read_answer(reply: Any) -> Answer:
    try:
        choice = reply["choices"][0]
        message = choice["message"]
        content, finish_reason = message["content"] or "", choice["finish_reason"]
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        usage = reply.get("usage") or {}
    except (KeyError, IndexError, TypeError, AttributeError):
        raise _PassingError(f"a reply without an answer: {json.dumps(reply)[:120]}") from None
    if finish_reason not in ("stop", "length"):
        raise AnswerError(f"expected an answer that stops or is cut off, got finish_reason {finish_reason!r}")
    if not content.strip() and not (finish_reason == "length" and reasoning.strip()):
        raise AnswerError("the answer is empty")
    return Answer(content, reasoning, finish_reason, int(usage.get("completion_tokens") or 0))
