"""A running OpenAI-compatible server, asked for one completion and for what it counts about speculative decoding."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

_TIMEOUT_SECONDS = 120.0
# Prometheus counters of vLLM; gauge of SGLang.
_COUNTERS = {
    "drafts": "vllm:spec_decode_num_drafts",
    "drafted": "vllm:spec_decode_num_draft_tokens",
    "accepted": "vllm:spec_decode_num_accepted_tokens",
}
_LENGTH_GAUGE = "sglang:spec_accept_length"


@dataclass(frozen=True)
class Completion:
    """token_ids: None where the server sends text only."""

    text: str
    token_ids: list[int] | None


@dataclass(frozen=True)
class ServedAcceptance:
    """Counters since the server started; ``length`` where it reports only the acceptance length itself (bonus included)."""

    drafts: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    length: float | None = None

    def since(self, before: ServedAcceptance) -> ServedAcceptance:
        return ServedAcceptance(
            self.drafts - before.drafts, self.drafted - before.drafted, self.accepted - before.accepted, self.length
        )


class ServerError(ValueError):
    """The server does not answer, or not as an OpenAI-compatible one does."""


class CompletionServer:
    """url: with or without ``/v1`` at its end."""

    def __init__(self, url: str) -> None:
        self.root = url.rstrip("/").removesuffix("/v1")

    def model_name(self) -> str:
        """Name of the model that it serves, the first one."""
        return str(_field(self._json("/v1/models"), "data", 0, "id"))

    def complete(self, model: str, prompt_ids: list[int], max_tokens: int) -> Completion:
        """The greedy completion of a prompt given as token ids."""
        request = {
            "model": model,
            "prompt": prompt_ids,
            "max_tokens": max_tokens,
            "temperature": 0,
            "logprobs": 1,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        choice = _field(self._json("/v1/completions", request), "choices", 0)
        return Completion(str(choice.get("text", "")), _token_ids(choice))

    def acceptance(self) -> ServedAcceptance | None:
        """What the server has counted; None if it publishes nothing of the kind."""
        try:
            text = self._get("/metrics", None).decode()
        except ServerError:
            return None
        length = _sample(text, _LENGTH_GAUGE)
        counters = {name: _sample(text, metric) for name, metric in _COUNTERS.items()}
        if length is None and None in counters.values():
            return None
        return ServedAcceptance(length=length, **{name: value or 0.0 for name, value in counters.items()})

    def _json(self, path: str, request: dict[str, Any] | None = None) -> Any:
        body = self._get(path, request)
        try:
            return json.loads(body)
        except json.JSONDecodeError:
            raise ServerError(
                f"{self.root}{path}: expected JSON, got {body[:60]!r}; name an OpenAI-compatible server"
            ) from None

    def _get(self, path: str, request: dict[str, Any] | None) -> bytes:
        data = None if request is None else json.dumps(request).encode()
        call = urllib.request.Request(self.root + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(call, timeout=_TIMEOUT_SECONDS) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            detail = error.read()[:200].decode(errors="replace")
            raise ServerError(
                f"{self.root}{path}: expected an answer, got HTTP {error.code} {detail}; see the server's log"
            ) from None
        except (urllib.error.URLError, OSError) as error:
            raise ServerError(f"{self.root}{path}: expected an answer, got {error}; is the server running?") from None


def _token_ids(choice: dict[str, Any]) -> list[int] | None:
    if choice.get("token_ids"):
        return [int(token) for token in choice["token_ids"]]
    tokens = (choice.get("logprobs") or {}).get("tokens") or []
    found = [re.fullmatch(r"token_id:(\d+)", str(token)) for token in tokens]
    ids = [int(match.group(1)) for match in found if match]
    return ids if ids and len(ids) == len(tokens) else None


def _sample(text: str, metric: str) -> float | None:
    """Sum of a metric over its label sets (``_total`` is appended to counters by some clients)."""
    pattern = rf"^{re.escape(metric)}(?:_total)?(?:\{{[^}}]*\}})?\s+(\S+)"
    values = [float(value) for value in re.findall(pattern, text, flags=re.MULTILINE)]
    return sum(values) if values else None


def _field(answer: Any, *path: str | int) -> Any:
    for key in path:
        try:
            answer = answer[key]
        except (KeyError, IndexError, TypeError):
            raise ServerError(
                f"expected {path} in the server's answer, got {json.dumps(answer)[:80]}; name an OpenAI-compatible server"
            ) from None
    return answer
