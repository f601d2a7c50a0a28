"""One live completion of a server, held against the target's captured states and the drafter's own acceptance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from tp_dflash.blocks import BlockGeometry
from tp_dflash.drafter import Drafter
from tp_dflash.formats.contract.completion_server import CompletionServer, ServedAcceptance, ServerError
from tp_dflash.formats.contract.finding import Finding
from tp_dflash.target import Target

# Greedy choices of two programs differ where two logits are nearly equal; these shares are far below any real fault's.
_MIN_AGREEMENT, _MIN_ACCEPTANCE_SHARE = 0.95, 0.8
# Two bf16 steps at logits of 16 to 32.
_NEAR_TIE = 0.25
_CHUNK_ROWS = 512


def check_server(
    server: CompletionServer,
    target: Target,
    drafter: Drafter,
    head_VD: Tensor,
    prompt_ids: list[int],
    tokenize: Callable[[str], list[int]],
    max_tokens: int = 128,
) -> Iterator[Finding]:
    """Findings on a server that decodes for this target with this drafter. target: tapped on the drafter's layers."""
    try:
        model = server.model_name()
        yield Finding("server", f"serves {model}")
        before = server.acceptance()
        completion = server.complete(model, prompt_ids, max_tokens)
        after = server.acceptance()
    except ServerError as error:
        yield Finding("server", str(error), "start the server, or correct --server")
        return
    written = tokenize(completion.text) if completion.token_ids is None else completion.token_ids
    if len(written) < 2:
        yield Finding("served top-1", f"{len(written)} tokens written", "ask the server for a longer answer")
        return
    tokens_S = torch.tensor(prompt_ids + written)
    features_1SF, hidden_1SD, _ = target.run(tokens_S[None])
    yield _top1(hidden_1SD[0], head_VD, tokens_S, len(prompt_ids))
    if before is None or after is None:
        yield Finding("served acceptance", "the server publishes no figures of speculative decoding; not compared")
        return
    yield _acceptance(
        after.since(before), _streaks(target, drafter, head_VD, features_1SF[0], tokens_S), len(prompt_ids)
    )


def _top1(hidden_SD: Tensor, head_VD: Tensor, tokens_S: Tensor, start: int) -> Finding:
    """The served token at each place against the teacher row in front of it."""
    logits_CV = (hidden_SD[start - 1 : -1].to(head_VD.dtype) @ head_VD.T).float()
    served_C = tokens_S[start:].to(logits_CV.device)
    own = logits_CV.gather(1, served_C[:, None]).squeeze(1) >= logits_CV.amax(1) - _NEAR_TIE
    agreed, total = int(own.sum()), len(served_C)
    return Finding(
        "served top-1",
        f"{agreed} of {total} served tokens are the top-1 of our teacher rows",
        None
        if agreed >= _MIN_AGREEMENT * total
        else "serve this target, with its tokenizer, unquantised or as in training",
    )


def _streaks(target: Target, drafter: Drafter, head_VD: Tensor, features_SF: Tensor, tokens_S: Tensor) -> list[int]:
    """Streak of the block at every token, were it an anchor, against the text that follows."""
    shape, num_tokens = drafter.shape, len(tokens_S)
    position_S = torch.arange(num_tokens)
    geometry = BlockGeometry.build(
        torch.zeros_like(position_S), position_S, torch.zeros_like(position_S), position_S, shape.block_size
    )
    device = features_SF.device
    mask_D = target.embed(torch.tensor([shape.mask_token_id]))[0]
    with torch.inference_mode():
        hidden_ND = drafter(features_SF, target.embed(tokens_S), mask_D, geometry.to(device))
        parts = [(rows.to(head_VD.dtype) @ head_VD.T).argmax(-1).cpu() for rows in hidden_ND.split(_CHUNK_ROWS)]
    drafted_SB = torch.cat(parts).view(num_tokens, shape.block_size)[:, shape.first_predicted :]
    following_SB = position_S[:, None] + 1 + torch.arange(drafted_SB.shape[1])
    right_SB = (following_SB < num_tokens) & (drafted_SB == tokens_S[following_SB.clamp(max=num_tokens - 1)])
    return [int(run) for run in right_SB.long().cumprod(1).sum(1)]


def _acceptance(served: ServedAcceptance, streaks: Sequence[int], start: int) -> Finding:
    """Renewal averages over the same text: anchor t is followed by anchor t + 1 + streak(t)."""
    if served.length is None and served.drafts < 1:
        return Finding("served acceptance", "the server drafted nothing", "start the server with this drafter")
    drafted = round(served.drafted / served.drafts) if served.drafts else len(streaks)
    blocks, accepted, at = 0, 0, start
    while at < len(streaks) - 1:
        run = min(streaks[at], drafted)
        blocks, accepted, at = blocks + 1, accepted + run, at + 1 + run
    ours = 1 + accepted / max(1, blocks)
    theirs = served.length if served.length is not None else 1 + served.accepted / served.drafts
    return Finding(
        "served acceptance",
        f"{theirs:.2f} tokens a target forward, ours {ours:.2f} on the same text ({blocks} blocks)",
        None
        if theirs >= _MIN_ACCEPTANCE_SHARE * ours
        else "run the checks of the folder; compare layer ids, rotary and causality",
    )
