"""The plan as text: a table a role, the verdict, what to change, predicted rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tp_dflash.planner.byte_sizes import GIB, in_gib
from tp_dflash.planner.head_memory import dense_loss_bytes
from tp_dflash.planner.role_plan import RolePlan
from tp_dflash.planner.run_sizes import RunSizes
from tp_dflash.planner.step_time import StepTime, predict_time, stream_gb_per_second
from tp_dflash.planner.sweep import SweepPoint
from tp_dflash.planner.verdict import Verdict

_MOMENT_WORDS = {
    "features": "during the target's forward",
    "head": "in the head loss",
    "backward": "as the backward pass begins",
    "gradients": "as the backward pass ends",
    "update": "in the optimizer",
}


def plan_text(verdict: Verdict) -> str:
    """Everything that ``tp-dflash plan`` prints without a sweep."""
    parts = [_headline(verdict), *(_role_table(role) for role in verdict.roles), *_judgement(verdict), _rates(verdict)]
    return "\n\n".join(parts) + "\n"


def _headline(verdict: Verdict) -> str:
    sizes, shape = verdict.sizes, verdict.sizes.shape
    return (
        f"{sizes.facts.name}: {sizes.target_parameters / 1e9:.2f} B parameters without lm_head; drafter of "
        f"{shape.num_layers} layers, {shape.num_parameters / 1e9:.2f} B\n"
        f"T = {sizes.tokens:,} tokens a pack, A = {sizes.anchors:,} anchors x B = {shape.block_size}: N = {sizes.rows:,} block "
        f"rows, at most {sizes.most_teacher_rows:,} teacher rows; D = {shape.hidden_size:,}, V = {sizes.facts.vocab_size:,}, "
        f"K = {len(shape.target_layer_ids)} taps at {list(shape.target_layer_ids)}\n"
        f"{_targets(sizes)}, {sizes.num_drafters} drafter ranks, head over {sizes.head_ranks}, "
        f"{sizes.placement.num_nodes} node(s)"
    )


def _targets(sizes: RunSizes) -> str:
    if sizes.target_ranks == 1:
        return f"{sizes.num_targets} target"
    return f"{sizes.num_targets} target(s) of {sizes.target_ranks} ranks each"


def _role_table(role: RolePlan) -> str:
    moment = role.peak_moment
    title = f"{role.role} (rank{'s' if len(role.ranks) > 1 else ''} {', '.join(map(str, role.ranks))})"
    rows = [
        f"  {line.num_bytes / GIB:8.2f} {'*' if moment in line.moments else ' '} {line.name:<40} {line.arithmetic}"
        for line in role.lines
    ]
    total = f"  {role.peak_bytes / GIB:8.2f}   peak, {_MOMENT_WORDS[moment]}: the lines marked *"
    return "\n".join([f"{title}, GiB", *rows, total])


def _judgement(verdict: Verdict) -> Iterator[str]:
    yield f"Verdict: {verdict.summary()}"
    if not verdict.fits:
        yield "\n".join(_changes(verdict))
    yield f"Largest anchors.per_pack that fits, all else equal: {verdict.largest_anchors:,}"
    num_bytes, arithmetic = dense_loss_bytes(verdict.sizes)
    dense = verdict.dense_peak_bytes
    words = "would fit" if dense <= verdict.usable_bytes else "would run out of memory"
    yield (
        f"Whole logits in place of the chunks: {arithmetic} = {in_gib(num_bytes)} on each drafter rank, a peak of "
        f"{in_gib(dense)}: {words}"
    )


def _changes(verdict: Verdict) -> Iterator[str]:
    yield "What to change, cheapest first (each alone; saving on the fullest rank):"
    for tried in verdict.tried:
        mark = "fits" if tried.fits else "not enough"
        remedy = tried.remedy
        yield f"  {tried.saving / GIB:8.2f} GiB  {mark:<10}  {remedy.name}: {remedy.settings}  ({remedy.cost})"
    together = verdict.together
    if together is None:
        yield "  No combination of these fits: take a smaller target or drafter, or GPUs with more memory."
    else:
        yield "  Fits with: " + " ".join(remedy.settings for remedy in together)


def _rates(verdict: Verdict) -> str:
    time = predict_time(verdict.sizes, verdict.calibration)
    return "\n".join(
        [
            f"Predicted on {verdict.calibration.gpu}:",
            f"  target: {time.target:.3f} s a pack, pool {time.target_only_tokens_per_second:,.0f} tokens/s",
            f"  drafter: {time.drafter_pack:.3f} s a pack (layers {time.drafter_layers:.3f}, attention "
            f"{time.drafter_attention:.3f}, head {time.head:.3f}, update {time.update:.3f}), together "
            f"{time.drafter_packs_per_second * time.tokens_per_pack:,.0f} tokens/s",
            f"  training: {time.tokens_per_second:,.0f} tokens/s, a step of {time.step_seconds:.3f} s; {_balance(verdict, time)}",
        ]
    )


def _balance(verdict: Verdict, time: StepTime) -> str:
    if time.colocated:
        return "target and drafter take turns"
    slower, faster = ("drafters", "targets")
    if time.pool_packs_per_second <= time.drafter_packs_per_second:
        slower, faster = faster, slower
    idle = 1 - time.packs_per_second / max(time.pool_packs_per_second, time.drafter_packs_per_second)
    return (
        f"the {slower} set the pace, the {faster} wait {100 * idle:.0f}% of the time; each target sends "
        f"{stream_gb_per_second(verdict.sizes, time):.1f} GB/s; one drafter rank keeps up with "
        f"{1 / time.drafters_a_target:.2f} targets"
    )


def sweep_text(points: Sequence[SweepPoint]) -> str:
    """One row a number of nodes."""
    rows = ["nodes  GPUs     tokens/s  a GPU  targets alone  drafters alone  targets busy  drafters busy  fullest rank"]
    for point in points:
        time = point.time
        drafters = time.drafter_packs_per_second * time.tokens_per_pack
        rows.append(
            f"{point.num_nodes:5d} {point.num_gpus:5d} {time.tokens_per_second:12,.0f} "
            f"{time.tokens_per_second / point.num_gpus:6,.0f} {time.target_only_tokens_per_second:14,.0f} {drafters:15,.0f} "
            f"{100 * time.packs_per_second / time.pool_packs_per_second:12.0f}% "
            f"{100 * time.packs_per_second / time.drafter_packs_per_second:13.0f}% {in_gib(point.peak_bytes):>13}"
        )
    return "\n".join(rows) + "\n"
