"""A whole run gives the same drafter however its packs are spread over ranks, groups and micro-batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.ranks import run_ranks
from tests.training.tiny import BLOCK, TinyRun, build_loop, full_parameters, heads_of, open_tiny
from tp_dflash.config.objective import Objective
from tp_dflash.config.optimizer import OptimizerConfig
from tp_dflash.drafter import Drafter
from tp_dflash.training.course import Cursor
from tp_dflash.training.drafter_loop import StepDone
from tp_dflash.training.head_only_loop import run_head_only
from tp_dflash.training.head_only_step import HeadOnlyStep


def _train(rank: int, run: TinyRun) -> dict[str, object]:
    placement, groups = open_tiny(run, rank)
    if not placement.places[rank].is_drafter:
        step = HeadOnlyStep(
            heads_of(placement, rank, run.dtype),
            run.objective,
            block_size=BLOCK,
            num_blocks=6,
            head_chunk_rows=8,
            logits_precision=run.logits_precision,
            head_group=groups.head,
            workers=groups.workers,
        )
        run_head_only(
            run.course(placement, Cursor()),
            step,
            run.accumulation,
            placement.head_group_of(rank).ranks,
            lambda _: False,
        )
        return {}
    loop = build_loop(run, placement, groups, rank)
    initial = full_parameters(loop.step.drafter)
    done: list[StepDone] = []
    loop.run(lambda step: done.append(step) or False)
    figures = loop.step.meters.read(groups.drafters)
    return {
        "initial": initial,
        "parameters": full_parameters(loop.step.drafter),
        "held": _share_held(loop.step.drafter),
        "figures": figures,
        "steps": [step.after.step for step in done],
        "empty": [step.empty for step in done],
    }


def _share_held(drafter: Drafter) -> float:
    """Share of all parameters that this rank holds."""
    held = sum(parameter.to_local().numel() for parameter in drafter.parameters())
    return held / sum(parameter.numel() for parameter in drafter.parameters())


LAYOUTS = {
    "tensor parallel 2": (2, {"drafter": "0,1", "tensor_parallel": 2}),
    "data parallel 2": (2, {"drafter": "0,1"}),
    "accumulation 2": (1, {"accumulation": 2}),
    "tensor parallel 1, data parallel 2, a head-only rank each": (4, {"drafter": "1,3", "head": "0-3"}),
    "tensor parallel 2 and a head-only rank": (3, {"drafter": "1,2", "head": "0-2", "tensor_parallel": 2}),
    "two nodes of one, a copy on each": (2, {"nodes": 2, "drafter_shards": "node"}),
}


def _difference(one: dict, other: dict) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize(
    "objective", [Objective(kl=0.7, ce=0.3), Objective(kl=0, ce=1, weights="dpace")], ids=["blend", "dpace"]
)
def test_every_layout_trains_the_same_drafter(objective: Objective) -> None:
    results = {}
    for name, (world, settings) in LAYOUTS.items():
        *_, results[name] = run_ranks(_train, world, TinyRun(objective=objective, **settings))
    expected = results.pop("accumulation 2")
    assert _difference(expected["initial"], expected["parameters"]) > 1e-3
    for name, result in results.items():
        assert _difference(expected["initial"], result["initial"]) == 0, name
        assert _difference(expected["parameters"], result["parameters"]) < 1e-6, name
        for figure in ("loss", "accuracy", "streak", "alpha", "grad_norm"):
            assert result["figures"][figure] == pytest.approx(expected["figures"][figure], rel=1e-5), (name, figure)


def test_a_rank_without_a_trained_row_takes_part_and_changes_nothing() -> None:
    """Seven of eight documents cannot be trained: most steps have one idle rank, some have none that trains."""
    run = TinyRun(drafter="0,1", tensor_parallel=2, masked=frozenset(range(7)), epochs=1)
    first, second = run_ranks(_train, 2, run)
    assert _difference(first["parameters"], second["parameters"]) == 0
    assert all(bool(torch.isfinite(value).all()) for value in first["parameters"].values())
    assert sum(first["empty"]) == len(first["empty"]) - 1
    alone = run_ranks(_train, 1, TinyRun(accumulation=2, masked=run.masked, epochs=1))[0]
    assert _difference(first["parameters"], alone["parameters"]) < 1e-6


def test_a_run_without_any_trained_row_ends_with_the_drafter_unmoved() -> None:
    run = TinyRun(drafter="0,1", masked=frozenset(range(8)), epochs=1)
    for result in run_ranks(_train, 2, run):
        assert _difference(result["initial"], result["parameters"]) == 0
        assert all(result["empty"])
        assert result["figures"]["empty_steps"] == len(result["empty"])


def test_ranks_take_the_same_number_of_steps_whatever_the_documents() -> None:
    """An odd number of packs over two ranks: the last step is filled with an empty pack."""
    for lengths in ((24,) * 7, (100 // 5, 10, 10, 10, 18, 5, 5)):
        first, second = run_ranks(_train, 2, TinyRun(lengths=lengths, drafter="0,1", epochs=1))
        assert first["steps"] == second["steps"]
        assert repr(first["figures"]) == repr(second["figures"])


@pytest.mark.parametrize("optimizer", [OptimizerConfig(), OptimizerConfig(name="muon")], ids=["adamw", "muon"])
def test_copies_on_two_nodes_train_as_shards_over_both(optimizer: OptimizerConfig) -> None:
    """Two nodes of two drafter ranks: losses and weights of FSDP2 and of HSDP are those of one rank with four packs."""
    layout = TinyRun(drafter="0,1", nodes=2, epochs=1, optimizer=optimizer)
    spread = run_ranks(_train, 4, layout)[0]
    copied = run_ranks(_train, 4, replace(layout, drafter_shards="node"))
    expected = [spread]
    # Muon rounds its directions to bf16, so that one rank's other order of summation shows there, in both.
    if optimizer.name == "adamw":
        expected += run_ranks(_train, 1, TinyRun(accumulation=4, epochs=1, optimizer=optimizer))
    for one in expected:
        assert _difference(one["parameters"], copied[0]["parameters"]) < 1e-6
        for figure in ("loss", "grad_norm", "accuracy"):
            assert copied[0]["figures"][figure] == pytest.approx(one["figures"][figure], rel=1e-5)
    assert _difference(spread["initial"], spread["parameters"]) > 1e-4
    # Whatever the rank, and so in both copies: the same bits, of half of the state each.
    assert all(_difference(copied[0]["parameters"], other["parameters"]) == 0 for other in copied)
    assert all(result["held"] == pytest.approx(0.5, abs=0.02) for result in copied)
    assert spread["held"] == pytest.approx(0.25, abs=0.02)


def test_two_groups_of_two_train_as_one_rank_with_four_packs() -> None:
    """Tensor parallel 2 x data parallel 2: four drafter ranks, each with packs of its own."""
    *_, result = run_ranks(_train, 4, TinyRun(drafter="0-3", tensor_parallel=2))
    alone = run_ranks(_train, 1, TinyRun(accumulation=4))[0]
    assert _difference(alone["parameters"], result["parameters"]) < 1e-6


def test_norm_weights_move_in_a_bf16_run() -> None:
    """Masters are fp32: nearly no entry of a norm weight is still exactly 1 after 20 steps of a bf16 run."""
    run = TinyRun(drafter="0,1", dtype=torch.bfloat16, epochs=20, max_steps=20)
    first, _ = run_ranks(_train, 2, run)
    norms = {name: value for name, value in first["parameters"].items() if value.ndim == 1}
    assert len(norms) == 2 * 4 + 2
    for name, value in norms.items():
        assert value.dtype == torch.float32
        assert float((value == 1).float().mean()) < 0.05, name


def test_bf16_logits_reach_the_head_of_every_role() -> None:
    """Rounded logits train another drafter, and a head-only rank rounds its share too: the head compares the settings."""
    full = run_ranks(_train, 1, TinyRun(dtype=torch.bfloat16, epochs=1))[0]
    alone = run_ranks(_train, 1, TinyRun(dtype=torch.bfloat16, epochs=1, logits_precision="bfloat16"))[0]
    assert _difference(full["parameters"], alone["parameters"]) > 0
    shared = TinyRun(dtype=torch.bfloat16, epochs=1, logits_precision="bfloat16", drafter="1", head="0,1")
    *_, beside = run_ranks(_train, 2, shared)
    assert beside["figures"]["loss"] == pytest.approx(alone["figures"]["loss"], rel=0.02)


def test_muon_moves_whole_matrices_whatever_the_shards() -> None:
    muon = OptimizerConfig(name="muon")
    expected = run_ranks(_train, 1, TinyRun(accumulation=6, optimizer=muon))[0]
    by_adamw = run_ranks(_train, 1, TinyRun(accumulation=6))[0]
    assert _difference(expected["parameters"], by_adamw["parameters"]) > 1e-4
    for drafter, accumulation in (("0,1", 3), ("0-2", 2)):
        world = 6 // accumulation
        run = TinyRun(accumulation=accumulation, drafter=drafter, optimizer=muon)
        result = run_ranks(_train, world, run)[0]
        # Directions are rounded to bf16: gradients that differ in the last fp32 bit can differ there by one part in 256.
        assert _difference(expected["parameters"], result["parameters"]) < 2e-5, world
