"""The recipe's pictures. Comes in: what its runs wrote. Goes out: PNG files, one function each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tp_dflash.config.load import load_config
from tp_dflash.placement import Placement
from tp_dflash.planner import Calibration, RunSizes, check_fits

_ANCHORS = (128, 256, 512, 768, 1024, 1536, 2048)
_GIB = 2**30


def _figure(columns: int) -> tuple[Any, list[Any]]:
    figure: Any = Figure(figsize=(6.5 * columns, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False)
    return figure, list(axes[0])


def draw_positions(report: dict[str, Any], path: Path) -> None:
    """Acceptance by drafted position, a line a prompt set."""
    figure, (axes,) = _figure(1)
    for each in report["sets"]:
        shares = each["acceptance_by_position"]
        axes.plot(
            range(1, len(shares) + 1), shares, marker="o", label=f"{each['name']} ({each['acceptance_length']:.2f})"
        )
    axes.set(xlabel="drafted position", ylabel="share of blocks that accepted it", ylim=(0, 1))
    axes.set_title("acceptance by position (acceptance length), greedy")
    axes.legend()
    figure.savefig(path, dpi=110)


def draw_training(metrics: Sequence[dict[str, Any]], path: Path) -> None:
    """What to watch: accuracy at some block positions, and KL with the learning rate."""
    figure, (left, right) = _figure(2)
    steps = [line["step"] for line in metrics]
    for position in (1, 2, 4, 8):
        left.plot(steps, [line["accuracy_by_position"][position] for line in metrics], label=f"position {position}")
    left.plot(steps, [line["streak"] for line in metrics], "--", label="streak")
    left.set(xlabel="step", ylabel="accuracy against the label; streak")
    left.legend()
    right.plot(steps, [line["kl"] for line in metrics], label="KL")
    right.set(xlabel="step", ylabel="KL to the target, nats")
    rate = right.twinx()
    rate.plot(steps, [line["learning_rate"] for line in metrics], color="gray", linestyle=":", label="learning rate")
    rate.set_ylabel("learning rate (dotted)")
    figure.savefig(path, dpi=110)


def draw_trees(reports: dict[str, dict[str, Any]], budgets: Sequence[int], path: Path) -> None:
    """Acceptance and tokens a second by tree budget; budget 0 is the chain, timed on the same machine."""
    timed = next(name for name in ("speed-gpu-fp32", "speed-cpu-fp32") if name in reports)
    chain = reports[timed]["sets"][0]
    points = [(0, chain)] + [(b, reports[f"tree-{b}"]["sets"][0]) for b in budgets if f"tree-{b}" in reports]
    figure, (left, right) = _figure(2)
    left.plot([budget for budget, _ in points], [each["acceptance_length"] for _, each in points], marker="o")
    left.set(xlabel="nodes of the draft tree (0: chain)", ylabel="acceptance length")
    right.plot([budget for budget, _ in points], [each["tokens_per_second"] for _, each in points], marker="o")
    if chain["plain_tokens_per_second"] is not None:
        right.axhline(chain["plain_tokens_per_second"], color="black", linestyle="--", label="without the drafter")
        right.legend()
    right.set(xlabel="nodes of the draft tree (0: chain)", ylabel="tokens/s", ylim=(0, None))
    figure.savefig(path, dpi=110)


def draw_memory(config_path: Path, path: Path) -> None:
    """Planned peak of a drafter rank against the number of anchors, whole logits beside shards and chunks."""
    sharded, dense = [], []
    for anchors in _ANCHORS:
        config = load_config(config_path, [f"anchors.per_pack={anchors}"])
        gpus = len(RunSizes.gpus(config))
        verdict = check_fits(config, Placement.resolve(config.placement, gpus, gpus), 95 * _GIB, Calibration())
        sharded.append(max(role.peak_bytes for role in verdict.roles if "drafter" in role.role) / _GIB)
        dense.append(verdict.dense_peak_bytes / _GIB)
    figure, (axes,) = _figure(1)
    axes.plot(_ANCHORS, dense, marker="o", label="whole logits")
    axes.plot(_ANCHORS, sharded, marker="o", label="sharded and in chunks")
    axes.axhline(95, color="black", linestyle="--", label="95 GiB")
    block = load_config(config_path).drafter.block_size
    axes.set(xlabel=f"anchors a pack (blocks of {block})", ylabel="peak of a drafter GPU, GiB", ylim=(0, None))
    axes.set_title(f"{config_path.stem}, by tp-dflash plan")
    axes.legend()
    figure.savefig(path, dpi=110)
