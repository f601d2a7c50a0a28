"""Checks that run models: other readings of the weights, the target's own logits, a live server."""

import copy
import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import torch

from tests.formats.contract.learnt import CPU, learn, train
from tp_dflash.blocks import Document
from tp_dflash.formats import PublishedDrafter
from tp_dflash.formats.contract import (
    CompletionServer,
    check_running_target,
    check_server,
    probe,
    probed_layer_ids,
)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    return learn(tmp_path_factory.mktemp("learnt") / "target", sliding_window=12, layer_types=["sliding_attention"] * 2)


def _probe(learnt, published):
    target = learnt.target(probed_layer_ids(published.shape))
    found = list(probe(published, target, learnt.head_VD, learnt.documents))
    return {finding.subject: finding.line for finding in found if not finding.ok}


def _swapped(tensors, first, second):
    other = {first: second, second: first}
    return {
        name: tensors[name.replace(name.split(".")[-2], other.get(name.split(".")[-2], name.split(".")[-2]))]
        for name in tensors
    }


def test_a_drafter_read_as_it_was_trained_passes(learnt):
    assert _probe(learnt, learnt.published) == {}


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({"target_layer_ids": (3, 6)}, "layer ids on text"),
        ({"target_layer_ids": (1, 4)}, "layer ids on text"),
        ({"rope_theta": 10.0}, "rotary base on text"),
        ({"sliding_causal": False}, "causality on text"),
        ({"label_mode": "next_token"}, "label mode on text"),
    ],
    ids=str,
)
def test_a_field_that_training_did_not_use_shows_in_the_loss(learnt, changes, subject):
    published = learnt.published
    assert subject in _probe(learnt, PublishedDrafter(replace(published.shape, **changes), published.tensors))


def test_swapped_projections_show_in_the_loss(learnt):
    published = learnt.published
    tensors = _swapped(published.tensors, "q_proj", "k_proj")
    assert "query and key on text" in _probe(learnt, PublishedDrafter(published.shape, tensors))


def test_an_untrained_drafter_is_not_judged(learnt):
    generator = torch.Generator().manual_seed(0)
    tensors = {n: torch.randn(t.shape, generator=generator) * 0.1 for n, t in learnt.published.tensors.items()}
    target = learnt.target(probed_layer_ids(learnt.drafter.shape))
    (finding,) = probe(PublishedDrafter(learnt.drafter.shape, tensors), target, learnt.head_VD, learnt.documents)
    assert finding.ok
    assert "too little learnt" in finding.figure


def test_text_without_a_block_is_an_error(learnt):
    target = learnt.target(probed_layer_ids(learnt.drafter.shape))
    with pytest.raises(ValueError, match="give more data"):
        list(probe(learnt.published, target, learnt.head_VD, []))


def test_a_running_target_gives_its_own_logits(learnt):
    found = {finding.subject: finding for finding in check_running_target(learnt.target([2, 5]))}
    assert all(finding.ok for finding in found.values())
    assert found["teacher rows"].figure.startswith("8 of 8")


@pytest.mark.parametrize("norms", [0, 2])
def test_a_target_whose_norm_is_left_out_or_applied_twice_is_found(learnt, norms, monkeypatch):
    target = learnt.target([2, 5])
    own_run = target.run

    def run(tokens_RS, **arguments):
        features, hidden, output = own_run(tokens_RS, **arguments)
        if norms == 2:
            return features, target.decoder.norm(hidden), output
        last = target.decoder(input_ids=tokens_RS, output_hidden_states=True)
        before_norm = []
        handle = target.decoder.norm.register_forward_pre_hook(lambda module, args: before_norm.append(args[0]))
        target.decoder(input_ids=tokens_RS)
        handle.remove()
        return features, before_norm[0], last

    with torch.no_grad():
        target.decoder.norm.weight.uniform_(0.5, 2.0)
    monkeypatch.setattr(target, "run", run)
    found = {finding.subject: finding for finding in check_running_target(target)}
    assert not found["teacher rows"].ok


class FakeServer:
    """Answers as vLLM does: greedy tokens of a text that is known, counters of blocks that accept ``run`` of ``drafted``."""

    def __init__(self, tokens, drafts=0, drafted=0, accepted=0, *, ids=True, metrics=True):
        self.tokens, self.counts, self.ids, self.metrics = tokens, (drafts, drafted, accepted), ids, metrics
        self.done = 0
        self.requests = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path == "/v1/models":
                    self._send(json.dumps({"data": [{"id": "tiny"}]}))
                elif self.path == "/metrics" and owner.metrics:
                    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
                    lines = [
                        f'vllm:spec_decode_{name}_total{{engine="0",model_name="tiny"}} {7.0 + owner.done * count}'
                        for name, count in zip(names, owner.counts, strict=True)
                    ]
                    self._send("\n".join(["# HELP x", *lines]) + "\n")
                else:
                    self.send_error(404)

            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.requests.append(request)
                owner.done += 1
                choice = {"text": " ".join(map(str, owner.tokens))}
                if owner.ids:
                    choice["logprobs"] = {"tokens": [f"token_id:{token}" for token in owner.tokens]}
                self._send(json.dumps({"choices": [choice]}))

            def _send(self, text):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


PROMPT = [36, 9, 4]


@pytest.fixture(scope="module")
def served(learnt):
    """The drafter after some more steps on the very text that the server will write: it drafts most of it."""
    more = replace(learnt, drafter=copy.deepcopy(learnt.drafter))
    text = torch.tensor(PROMPT + _greedy(learnt))
    train(more, lambda step: [Document(0, text, torch.ones(len(text), dtype=torch.bool))], steps=60)
    return more


def _greedy(learnt, count=30):
    target, tokens = learnt.target([2, 5]), list(PROMPT)
    for _ in range(count):
        _, hidden, _ = target.run(torch.tensor([tokens]))
        tokens.append(int((hidden[0, -1] @ learnt.head_VD.T).argmax()))
    return tokens[len(PROMPT) :]


def _decoded(learnt, written):
    """(drafts, accepted): speculative decoding of the known text with the drafter's own cache, block by block."""
    target, shape = learnt.target(learnt.drafter.shape.target_layer_ids), learnt.drafter.shape
    tokens = torch.tensor(PROMPT + written)
    features, _, _ = target.run(tokens[None])
    cache, known, anchor, drafts, accepted = learnt.drafter.new_cache(1, CPU), 0, len(PROMPT), 0, 0
    mask = target.embed(torch.tensor([shape.mask_token_id]))[0]
    while anchor < len(tokens) - 1:
        learnt.drafter.extend(cache, features[:, known:anchor], torch.tensor([anchor - known]))
        known = anchor
        hidden = learnt.drafter.draft(cache, target.embed(tokens[anchor : anchor + 1]), mask)
        drafted = (hidden[0, 1:] @ learnt.head_VD.T).argmax(-1)
        right = tokens[anchor + 1 : anchor + shape.block_size]
        run = int((drafted[: len(right)] == right).long().cumprod(0).sum())
        drafts, accepted, anchor = drafts + 1, accepted + run, anchor + 1 + run
    return drafts, accepted


def _served(learnt, server, **options):
    target = learnt.target(learnt.drafter.shape.target_layer_ids)
    tokenize = options.pop("tokenize", lambda text: [int(word) for word in text.split()])
    found = check_server(
        CompletionServer(server), target, learnt.drafter, learnt.head_VD, PROMPT, tokenize, max_tokens=30
    )
    return {finding.subject: finding for finding in found}


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("suffix", ["", "/v1", "/v1/"])
def test_a_server_that_decodes_as_we_do_passes(served, ids, suffix):
    written = _greedy(served)
    drafts, accepted = _decoded(served, written)
    with FakeServer(written, drafts, 3 * drafts, accepted, ids=ids) as server:
        found = _served(served, server.url + suffix)
    assert all(finding.ok for finding in found.values())
    assert found["served top-1"].figure.startswith("30 of 30")
    length = f"{1 + accepted / drafts:.2f}"
    assert found["served acceptance"].figure.startswith(f"{length} tokens a target forward, ours {length}")
    (request,) = server.requests
    assert (request["prompt"], request["max_tokens"], request["temperature"]) == (PROMPT, 30, 0)


def test_a_server_of_another_target_is_found(served):
    written = [(token + 1) % 40 for token in _greedy(served)]
    with FakeServer(written, 10, 30, 20) as server:
        assert not _served(served, server.url)["served top-1"].ok


def test_a_server_that_accepts_much_less_is_found(served):
    written = _greedy(served)
    drafts, accepted = _decoded(served, written)
    assert accepted / drafts > 1
    with FakeServer(written, 30, 90, 1) as server:
        found = _served(served, server.url)
    assert found["served top-1"].ok
    assert not found["served acceptance"].ok


def test_a_server_without_figures_or_without_drafts_says_so(served):
    written = _greedy(served)
    with FakeServer(written, metrics=False) as server:
        assert "not compared" in _served(served, server.url)["served acceptance"].figure
    with FakeServer(written) as server:
        assert not _served(served, server.url)["served acceptance"].ok


def test_a_server_that_is_not_there_is_a_finding(served):
    with FakeServer([1]) as server:
        url = server.url
    found = _served(served, url)
    assert not found["server"].ok
    assert "is the server running" in found["server"].figure


def test_shorter_drafts_of_the_server_are_compared_with_as_short_ones(served):
    """num_speculative_tokens below B - 1: our streaks are cut to what the server drafts."""
    written = _greedy(served)
    with FakeServer(written, 10, 10, 9) as server:
        found = _served(served, server.url)
    ours = float(found["served acceptance"].figure.split("ours ")[1].split(" ")[0])
    assert 1.0 <= ours <= 2.0
