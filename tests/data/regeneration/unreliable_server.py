"""A real OpenAI-compatible server on this machine that fails, stalls and truncates as a script tells it."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any


class UnreliableServer:
    """Answers ``echo: <last question>``. misbehave(question, attempt) names a fault for an attempt (from 1), or None.

    requests: every body that came. at_once: requests that are under way, most_at_once: the largest such number so far.
    """

    def __init__(self, misbehave: Callable[[str, int], str | None] = lambda *_: None, delay: float = 0.0) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.most_at_once = 0
        self._misbehave = misbehave
        self._delay = delay
        self.at_once = 0
        self._attempts: dict[str, int] = {}
        self._lock = threading.Lock()
        self.release = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer._answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Clients that hang up are part of the test."""

        self._server = Server(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> UnreliableServer:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        question = body["messages"][-1]["content"]
        with self._lock:
            self.requests.append({"path": handler.path, **body})
            self.headers.append(dict(handler.headers))
            self._attempts[question] = attempt = self._attempts.get(question, 0) + 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(self._delay)
        fault = self._misbehave(question, attempt)
        if fault not in _FAULTS:
            # Over before the reply goes out: its reader may ask again at once.
            self._count_done()
            self._status(handler, int(fault or 200), question)
            return
        try:
            _FAULTS[fault](self, handler, question)
        finally:
            self._count_done()

    def _count_done(self) -> None:
        with self._lock:
            self.at_once -= 1

    def _status(self, handler: http.server.BaseHTTPRequestHandler, status: int, question: str) -> None:
        content = (
            reply(f"echo: {question}") if status == 200 else json.dumps({"error": f"told to say {status}"}).encode()
        )
        handler.send_response(status)
        if status == 429:
            handler.send_header("Retry-After", "0")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


def reply(content: str | None, finish_reason: str = "stop", **message: Any) -> bytes:
    """The body of an answer."""
    choice = {
        "index": 0,
        "finish_reason": finish_reason,
        "message": {"role": "assistant", "content": content, **message},
    }
    return json.dumps({"choices": [choice], "usage": {"completion_tokens": 3}}).encode()


def _send(handler: http.server.BaseHTTPRequestHandler, content: bytes, claimed: int | None = None) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content) if claimed is None else claimed))
    handler.end_headers()
    handler.wfile.write(content)


def _stall(server: UnreliableServer, handler: http.server.BaseHTTPRequestHandler, question: str) -> None:
    server.release.wait(30)


def _stall_in_the_middle(server: UnreliableServer, handler: http.server.BaseHTTPRequestHandler, question: str) -> None:
    _send(handler, reply(question)[:20], claimed=500)
    handler.wfile.flush()
    server.release.wait(30)


def _trickle(server: UnreliableServer, handler: http.server.BaseHTTPRequestHandler, question: str) -> None:
    _send(handler, b"", claimed=10_000)
    while not server.release.wait(0.05):
        handler.wfile.write(b" ")
        handler.wfile.flush()


def _hang_up(server: UnreliableServer, handler: http.server.BaseHTTPRequestHandler, question: str) -> None:
    handler.close_connection = True
    handler.connection.close()


_FAULTS: dict[str | None, Callable[[UnreliableServer, http.server.BaseHTTPRequestHandler, str], None]] = {
    "stall": _stall,
    "stall in the middle": _stall_in_the_middle,
    "trickle": _trickle,
    "hang up": _hang_up,
    "half a body": lambda server, handler, question: _send(
        handler, reply(question)[:-30], claimed=len(reply(question))
    ),
    "half an answer": lambda server, handler, question: _send(handler, reply(question)[:-30]),
    "not json": lambda server, handler, question: _send(handler, b"<html>busy</html>"),
    "no choices": lambda server, handler, question: _send(handler, b'{"choices": []}'),
    "empty": lambda server, handler, question: _send(handler, reply("")),
    "cut off": lambda server, handler, question: _send(handler, reply(f"echo: {question} and", "length")),
    "reasoning": lambda server, handler, question: _send(handler, reply("fine", reasoning_content=f"about {question}")),
    "only reasoning": lambda server, handler, question: _send(handler, reply(None, "length", reasoning_content="hm")),
}
