"""A target split over two or three ranks gives the features of the whole one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.ranks import run_ranks
from tests.target.models import CPU, FULL, LAYER_IDS, load_target, make_layout, make_model, save_model
from tp_dflash.config.target import TargetConfig
from tp_dflash.target import Target, check_target, read_target_facts

THIRDS = {"hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 3}
LENGTHS = (9, 1, 20, 13)
Kinds = dict[str, tuple[str, dict[str, Any]]]
SPLIT: dict[int, Kinds] = {
    2: {
        "with biases": ("qwen2", {}),
        "norms on heads, sliding": ("gemma3_text", {}),
        "linear attention": (
            "qwen3_5_text",
            {
                "layer_types": ["linear_attention", *FULL, "linear_attention", *FULL, *FULL],
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 2,
                "linear_key_head_dim": 4,
                "linear_value_head_dim": 4,
            },
        ),
    },
    3: {"plain": ("llama", THIRDS)},
}
REFUSED: dict[int, Kinds] = {
    2: {
        "layers.0.mlp.gate_proj: expected a size that 2 target ranks share evenly, got 25": (
            "llama",
            {"intermediate_size": 25},
        ),
        "set placement.target_tensor_parallel = 1": ("mixtral", {"num_local_experts": 2}),
    },
    3: {"key/value heads: expected a size that 3 target ranks share evenly, got 2": ("llama", {})},
}


def _work(
    rank: int, split: list[TargetConfig], refused: list[TargetConfig]
) -> tuple[list[list[torch.Tensor]], list[str]]:
    """The leader's features and the followers' number of parameters; and what each rank says to what cannot be split."""
    results = []
    for config in split:
        target = Target.load(config, read_target_facts(config), LAYER_IDS, CPU, dist.group.WORLD)
        check_target(target)
        if rank == 0:
            batch = target.features(make_layout(*LENGTHS))
            results.append([batch.features_TF, batch.teacher_hidden_UD])
        else:
            target.follow(make_layout(*LENGTHS))
            results.append([torch.tensor(sum(parameter.numel() for parameter in target.decoder.parameters()))])
    words = []
    for config in refused:
        try:
            Target.load(config, read_target_facts(config), LAYER_IDS, CPU, dist.group.WORLD)
            words.append("loaded")
        except ValueError as error:
            words.append(str(error))
    return results, words


def _saved(kinds: Kinds, folder: Path) -> list[TargetConfig]:
    return [
        save_model(make_model(model_type, **fields), folder / str(index))
        for index, (model_type, fields) in enumerate(kinds.values())
    ]


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_split_targets_give_the_whole_ones_features_or_are_refused(num_ranks: int, tmp_path: Path) -> None:
    split = _saved(SPLIT[num_ranks], tmp_path / "split")
    ranks = run_ranks(_work, num_ranks, split, _saved(REFUSED[num_ranks], tmp_path / "refused"), timeout=150.0)
    for index, config in enumerate(split):
        whole = load_target(config)
        batch = whole.features(make_layout(*LENGTHS))
        features_TF, teacher_UD = ranks[0][0][index]
        torch.testing.assert_close(features_TF, batch.features_TF, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(teacher_UD, batch.teacher_hidden_UD, rtol=1e-5, atol=1e-5)
        everything = sum(parameter.numel() for parameter in whole.decoder.parameters())
        assert all(int(results[index][0]) < 0.85 * everything for results, _ in ranks[1:])
    for _, words in ranks:
        for message, said in zip(REFUSED[num_ranks], words, strict=True):
            assert message in said
