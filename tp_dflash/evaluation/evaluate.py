"""Judge a drafter by decoding prompts with its target: the one evaluation that the command line and training share.

In: a whole drafter and a whole target on this rank, prompt sets, settings, and the group over whose ranks the prompts are
spread. Out: an EvaluationReport, equal on every rank of the group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from tp_dflash.blocks import Document
from tp_dflash.config.evaluation import EvaluationConfig
from tp_dflash.drafter import Drafter
from tp_dflash.evaluation.decoding import Acceptance, Decoder, DecodingRules
from tp_dflash.evaluation.draft_session import DraftHead, DraftSession
from tp_dflash.evaluation.forward_cost import ForwardCost
from tp_dflash.evaluation.offline_acceptance import offline_acceptance
from tp_dflash.evaluation.prompts import PromptSet
from tp_dflash.evaluation.report import EvaluationReport, PromptSetReport
from tp_dflash.evaluation.set_sums import SetSums, num_tokens
from tp_dflash.evaluation.stopwatch import Stopwatch
from tp_dflash.evaluation.streaks import StreakTally
from tp_dflash.evaluation.target_session import TargetSession
from tp_dflash.parallel import synchronise
from tp_dflash.target import Target

# Called after each batch of this rank: name of the prompt set, prompts done, prompts in all (of this rank).
Progress = Callable[[str, int, int], None]


def evaluate_drafter(
    drafter: Drafter,
    target: Target,
    head_VD: Tensor,
    prompt_sets: Sequence[PromptSet],
    settings: EvaluationConfig,
    *,
    documents: Sequence[Document] = (),
    group: ProcessGroup | None = None,
    draft_head: DraftHead | None = None,
    names: tuple[str, str] = ("drafter", "target"),
    progress: Progress | None = None,
) -> EvaluationReport:
    """Decode every prompt speculatively, the first few of each set plainly too, and judge ``documents`` as they stand.

    drafter: an ordinary module, whole on each rank (ranks decode unequal numbers of blocks, so no forward may hold a
    collective), on the target's device. head_VD: the target's whole lm_head there. draft_head: the drafter's own, where it
    has one. group: prompt i is decoded by rank i mod size, and sums are all-reduced once a set; None: by this rank alone.
    names: drafter and target, for the report. ValueError if the drafter was made for another target, or a prompt with its
    answer is longer than the target allows.
    """
    _check_fit(drafter, target, head_VD, prompt_sets, settings)
    decoder = Decoder(target, head_VD, _rules(settings, target), drafter, draft_head)
    was_training = drafter.training
    drafter.eval()
    try:
        _warm_up(decoder, prompt_sets)
        if settings.tree_stop == "cost" and settings.tree_budget is not None:
            cost = measure_cost(decoder, prompt_sets[0].prompts[0], settings.tree_budget)
            decoder.rules = replace(decoder.rules, tree_cost=_first_ones(cost, target.group))
        reports, first_key = [], 0
        offline = (
            offline_acceptance(
                drafter, target, head_VD, documents, settings.offline_tree_budgets, group=group
            ).lengths()
            if documents
            else {}
        )
        for prompts in prompt_sets:
            sums = _decode_set(decoder, prompts, first_key, settings, group, progress).over(group)
            reports.append(PromptSetReport.of(prompts.name, sums, decoder.rules))
            first_key += len(prompts.prompts)
    finally:
        drafter.train(was_training)
    kept = settings.model_dump(mode="json", exclude={"prompts"})
    return EvaluationReport(*names, kept, tuple(reports), offline)


def _check_fit(
    drafter: Drafter, target: Target, head_VD: Tensor, prompt_sets: Sequence[PromptSet], settings: EvaluationConfig
) -> None:
    shape, facts = drafter.shape, target.facts
    expected = (shape.target_layer_ids, shape.hidden_size, shape.vocab_size)
    got = (target.layer_ids, facts.hidden_size, head_VD.shape[0])
    if expected != got:
        raise ValueError(
            f"expected a target with tapped layers, width and vocabulary {expected}, as the drafter was made for, got {got}; "
            "evaluate it with its own target"
        )
    for prompts in prompt_sets:
        longest = max(map(len, prompts.prompts))
        # The last block may reach beyond the answer: its rows need positions too.
        if longest + settings.max_new_tokens + shape.block_size > facts.max_positions:
            raise ValueError(
                f"{prompts.name}: expected prompt, answer and a block within the target's {facts.max_positions} positions, got "
                f"{longest} + {settings.max_new_tokens} + {shape.block_size}; shorten the prompt or lower "
                "evaluation.max_new_tokens"
            )


def _rules(settings: EvaluationConfig, target: Target) -> DecodingRules:
    default: Acceptance = "rejection" if settings.tree_budget is None else "match"
    return DecodingRules(
        max_new_tokens=settings.max_new_tokens,
        stop_tokens=frozenset(target.facts.eos_token_ids),
        temperature=settings.temperature,
        acceptance=settings.acceptance or default,
        tree_budget=settings.tree_budget,
        seed=settings.seed,
    )


def _decode_set(
    decoder: Decoder,
    prompts: PromptSet,
    first_key: int,
    settings: EvaluationConfig,
    group: ProcessGroup | None,
    progress: Progress | None,
) -> SetSums:
    """This rank's share of a set. Prompts that are decoded plainly too form batches of their own."""
    rank, size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    mine = range(rank, len(prompts.prompts), size)
    limit = len(prompts.prompts) if settings.baseline_prompts is None else settings.baseline_prompts
    compared, others = [i for i in mine if i < limit], [i for i in mine if i >= limit]
    sums = SetSums(StreakTally.empty(decoder.num_drafted))
    done = 0
    for numbers, is_compared in [
        *((batch, True) for batch in _batches(compared, settings.batch_size)),
        *((batch, False) for batch in _batches(others, settings.batch_size)),
    ]:
        texts, keys = [prompts.prompts[i] for i in numbers], [first_key + i for i in numbers]
        sums += _decode_batch(decoder, texts, keys, is_compared)
        done += len(numbers)
        if progress is not None:
            progress(prompts.name, done, len(mine))
    return sums


def _batches(numbers: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]


def _decode_batch(
    decoder: Decoder, prompts: Sequence[Sequence[int]], keys: Sequence[int], is_compared: bool
) -> SetSums:
    watch = Stopwatch(decoder.target.device)
    answers = decoder.speculative(prompts, keys, watch)
    sums = SetSums.of(answers, watch, decoder.num_drafted)
    if not is_compared:
        return sums
    plain_watch = Stopwatch(decoder.target.device)
    plain = decoder.plain(prompts, keys, plain_watch)
    return replace(
        sums,
        compared_prompts=sums.prompts,
        compared_tokens=sums.tokens,
        compared_seconds=sums.draft_seconds + sums.verify_seconds + sums.rest_seconds,
        plain_tokens=num_tokens(plain),
        plain_seconds=plain_watch.of("verify"),
        identical=sum(mine.tokens == theirs.tokens for mine, theirs in zip(answers, plain, strict=True)),
    )


def _warm_up(decoder: Decoder, prompt_sets: Sequence[PromptSet]) -> None:
    """One short answer outside every stopwatch: first calls pay for kernels and memory that later ones have."""
    rules = decoder.rules
    decoder.rules = replace(rules, max_new_tokens=2, stop_tokens=())
    prompt = prompt_sets[0].prompts[0][:16]
    decoder.speculative([prompt], [0], Stopwatch(decoder.target.device))
    decoder.plain([prompt], [0], Stopwatch(decoder.target.device))
    decoder.rules = rules


def _first_ones(cost: ForwardCost, group: ProcessGroup | None) -> ForwardCost:
    """What the first of the ranks that hold the target together measured: all of them must draw the same trees."""
    told = [cost]
    if group is not None:
        dist.broadcast_object_list(told, group_src=0, group=group)
    return told[0]


@torch.inference_mode()
def measure_cost(decoder: Decoder, prompt: Sequence[int], budget: int, repeats: int = 3) -> ForwardCost:
    """Time a draft and target passes of three sizes behind a prompt; a line through the medians is the cost of a node."""
    assert decoder.drafter is not None
    session = TargetSession(decoder.target, decoder.head_VD, 1, len(prompt) + budget + 1)
    _, features_1SF, length_1 = session.prefill([prompt])
    drafts = DraftSession(decoder.drafter, decoder.target, 1)
    drafts.extend(features_1SF, length_1)
    anchor_1 = torch.tensor([prompt[-1]])

    def seconds(call: Callable[[], object]) -> float:
        times = []
        for _ in range(repeats):
            synchronise(decoder.target.device)
            start = time.perf_counter()
            call()
            synchronise(decoder.target.device)
            times.append(time.perf_counter() - start)
        return median(times)

    draft = seconds(lambda: decoder.draft_head.logits(drafts.draft(anchor_1)))
    sizes = sorted({0, (budget + 1) // 2, budget})
    passes = [seconds(partial(session.verify, anchor_1.repeat(1, 1 + nodes))) for nodes in sizes]
    return ForwardCost.fit(sizes, [draft + time_of_pass for time_of_pass in passes])
