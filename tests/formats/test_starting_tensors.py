"""Training that starts from a published drafter: the same network, in fp32; anything else is refused by name."""

from dataclasses import replace

import pytest
import torch

from tests.formats.folders import trained, write_target
from tp_dflash.formats import TargetMatrices, read_zlab, starting_tensors, write_speculators, write_zlab
from tp_dflash.target import read_target_facts


@pytest.fixture
def published(tmp_path):
    target = write_target(tmp_path / "target")
    _, published = trained(target, torch.bfloat16)
    write_zlab(tmp_path / "zlab", published)
    write_speculators(
        tmp_path / "speculators", published, TargetMatrices.read(target, read_target_facts(target), torch.bfloat16)
    )
    return published


@pytest.mark.parametrize("layout", ["zlab", "speculators"])
def test_either_layout_gives_the_published_weights_in_fp32(tmp_path, published, layout):
    tensors = starting_tensors(tmp_path / layout, published.shape)
    assert tensors.keys() == published.tensors.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor.to(torch.bfloat16), published.tensors[name])


def test_blocks_and_windows_may_change(tmp_path, published):
    shape = replace(
        published.shape,
        block_size=8,
        mask_token_id=59,
        label_mode="next_token",
        layer_types=("sliding_attention", "full_attention"),
        sliding_window=7,
    )
    assert starting_tensors(tmp_path / "zlab", shape).keys() == read_zlab(tmp_path / "zlab").tensors.keys()


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 1e6},
        {"target_layer_ids": (4, 9)},
        {"hidden_size": 32},
        {"num_kv_heads": 1},
        {"layer_types": ("full_attention",)},
        {"rms_norm_eps": 1e-5},
    ],
    ids=str,
)
def test_another_network_is_refused_by_name(tmp_path, published, changes):
    with pytest.raises(ValueError, match=next(iter(changes)) if "layer_types" not in changes else "number of layers"):
        starting_tensors(tmp_path / "zlab", replace(published.shape, **changes))
