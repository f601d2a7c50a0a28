"""Features are the model's own hidden states, teacher rows give its own logits, whatever the bucket and the padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.target.models import (
    CPU,
    FAMILIES,
    LAYER_IDS,
    load_target,
    make_layout,
    make_model,
    save_model,
    separate_outputs,
)
from tp_dflash.blocks import AnchorCaps, BlockLayout, Document, Pack
from tp_dflash.config.target import TargetConfig
from tp_dflash.target import Target, check_target, read_head_rows, read_target_facts

LENGTHS = (9, 1, 20, 13, 2, 12)


@pytest.mark.parametrize("family", FAMILIES)
def test_features_are_the_models_own(family: str, tmp_path: Path) -> None:
    """Right-padded buckets against one document at a time through the model with its lm_head."""
    model = make_model(family)
    config = save_model(model, tmp_path)
    target, layout = load_target(config), make_layout(*LENGTHS)
    hidden, logits = separate_outputs(model, layout.pack)
    batch = target.features(layout)
    expected_features = torch.cat([hidden[layer_id + 1] for layer_id in LAYER_IDS], dim=-1)
    torch.testing.assert_close(batch.features_TF, expected_features, rtol=1e-5, atol=1e-5)
    head_VD = read_head_rows(config, target.facts, 0, target.facts.vocab_size)
    teacher_logits = batch.teacher_hidden_UD @ head_VD.T
    assert (teacher_logits - logits[layout.teacher_row_U]).abs().max() < 1e-4
    with torch.no_grad():
        embed: Any = model.get_input_embeddings()
        expected_embeddings = embed(layout.anchor_tokens_A)
    torch.testing.assert_close(batch.anchor_embeddings_AD, expected_embeddings, rtol=0, atol=0)
    assert batch.finite_documents is not None
    assert batch.finite_documents.all()
    check = check_target(target)
    assert check.logits < 1e-4
    assert check.embeddings == 0


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_second_final_norm_would_show(family: str, tmp_path: Path) -> None:
    """The comparison above is sharp: rows before the norm, or normed twice, are far from the model's logits."""
    model = make_model(family)
    config = save_model(model, tmp_path)
    target, layout = load_target(config), make_layout(*LENGTHS)
    _, logits = separate_outputs(model, layout.pack)
    head_VD = read_head_rows(config, target.facts, 0, target.facts.vocab_size)
    norm: Any = target.decoder.norm
    twice = norm(target.features(layout).teacher_hidden_UD)
    assert (twice @ head_VD.T - logits[layout.teacher_row_U]).abs().max() > 1e-2
    before: list[Tensor] = []
    handle = norm.register_forward_pre_hook(lambda module, args: before.append(args[0]))
    target.run(layout.pack.documents[0].tokens_S[None])
    handle.remove()
    assert (before[0][0] @ head_VD.T - logits[:9]).abs().max() > 1e-2


def test_bits_depend_on_the_pack_alone(tmp_path: Path) -> None:
    """Two targets, other packs in between, a buffer of the caller: always the same bits."""
    config = save_model(make_model("qwen3"), tmp_path)
    layout, other = make_layout(*LENGTHS), make_layout(30, 4, 4)
    first, second = load_target(config), load_target(config)
    expected = first.features(layout)
    second.features(other)
    wide = torch.full((100, 3 * 16), 7.0)
    out = dataclasses.replace(second.empty_batch(layout), features_TF=wide[: layout.pack.num_tokens])
    assert second.features(layout, out) is out
    assert torch.equal(wide[: layout.pack.num_tokens], expected.features_TF)
    assert (wide[layout.pack.num_tokens :] == 7).all()
    assert torch.equal(out.teacher_hidden_UD, expected.teacher_hidden_UD)
    assert torch.equal(out.anchor_embeddings_AD, expected.anchor_embeddings_AD)


def test_features_can_be_trained_on(tmp_path: Path) -> None:
    """They are made without gradients but must be usable where gradients are recorded."""
    target = load_target(save_model(make_model("llama"), tmp_path))
    batch = target.features(make_layout(9, 12))
    projection = nn.Linear(target.feature_size, 4)
    projection(batch.features_TF).sum().backward()
    assert projection.weight.grad is not None
    assert not any(parameter.requires_grad for parameter in target.decoder.parameters())


def test_an_empty_pack_has_empty_features(tmp_path: Path) -> None:
    target = load_target(save_model(make_model("llama"), tmp_path))
    batch = target.features(BlockLayout.build(Pack(4, 0, ()), AnchorCaps(5), 0, 4))
    assert batch.features_TF.shape == (0, 48)
    assert batch.teacher_hidden_UD.shape == (0, 16)
    assert batch.anchor_embeddings_AD.shape == (0, 16)
    assert batch.pack_id == 4


class _PowersOfTen(nn.Module):
    """Layer i adds 10^i to the stream, as a tuple or as a tensor by turns; the embedding of token t is t."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(torch.arange(50.0)[:, None].repeat(1, 16))
        self.layers = nn.ModuleList(_Add(10.0**i, as_tuple=i % 2 == 0) for i in range(5))

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def forward(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
        hidden: Tensor = self.table(input_ids)
        for layer in self.layers:
            out: Any = layer(hidden)
            hidden = out[0] if isinstance(out, tuple) else out
        return SimpleNamespace(last_hidden_state=hidden)


class _Add(nn.Module):
    def __init__(self, amount: float, as_tuple: bool) -> None:
        super().__init__()
        self.amount, self.as_tuple = amount, as_tuple

    def forward(self, hidden: Tensor) -> Tensor | tuple[Tensor]:
        return (hidden + self.amount,) if self.as_tuple else hidden + self.amount


def _stub(tmp_path: Path, layer_ids: list[int]) -> Target:
    config = save_model(make_model("llama"), tmp_path)
    return Target(_PowersOfTen(), read_target_facts(config), layer_ids, config, CPU)


def test_layer_ids_mean_outputs_of_layers(tmp_path: Path) -> None:
    """Token id = position, block 4, anchor 10: id 1 gives embedding + 1 + 10, id 3 gives embedding + 1111."""
    mask = torch.ones(16, dtype=torch.bool)
    mask[:10], mask[12:] = False, False
    layout = BlockLayout.build(Pack(0, 0, (Document(0, torch.arange(16), mask),)), AnchorCaps(1), 0, 4)
    batch = _stub(tmp_path, [1, 3]).features(layout)
    position_T = torch.arange(16.0)[:, None]
    assert torch.equal(batch.features_TF[:, :16], (position_T + 11).expand(16, 16))
    assert torch.equal(batch.features_TF[:, 16:], (position_T + 1111).expand(16, 16))
    assert layout.anchor_A.tolist() == [10]
    assert torch.equal(batch.anchor_embeddings_AD, torch.full((1, 16), 10.0))
    assert layout.teacher_row_U.tolist() == [10]
    assert torch.equal(batch.teacher_hidden_UD, torch.full((1, 16), 10.0 + 11111))


@pytest.mark.parametrize("layer_ids", [[4], [0, 5], [-1, 2], [2, 2], [3, 1], [], [0, 1, 2, 3, 3]])
def test_impossible_layer_ids_are_refused(layer_ids: list[int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected .*layer ids .* for a target of 5 layers"):
        _stub(tmp_path, layer_ids)


def test_a_document_with_non_finite_features_is_emptied_and_flagged(tmp_path: Path) -> None:
    """One infinite embedding row poisons the documents that hold the token, and no other."""
    model = make_model("llama")
    clean = load_target(save_model(model, tmp_path / "clean"))
    with torch.no_grad():
        table: Any = model.get_input_embeddings()
        table.weight[66] = float("inf")
    poisoned = load_target(save_model(model, tmp_path / "poisoned"))
    pack = make_layout(9, 14, 11).pack
    documents = [dataclasses.replace(document, tokens_S=document.tokens_S.clamp(max=65)) for document in pack.documents]
    documents[1].tokens_S[-1] = 66
    layout = BlockLayout.build(dataclasses.replace(pack, documents=tuple(documents)), AnchorCaps(20), 1, 4)
    batch, expected = poisoned.features(layout), clean.features(layout)
    assert batch.finite_documents is not None
    assert batch.finite_documents.tolist() == [True, False, True]
    kept_T = layout.pack.document_index_T != 1
    assert (batch.features_TF[~kept_T] == 0).all()
    assert torch.equal(batch.features_TF[kept_T], expected.features_TF[kept_T])
    kept_U, kept_A = kept_T[layout.teacher_row_U], kept_T[layout.anchor_A]
    assert (batch.teacher_hidden_UD[~kept_U] == 0).all()
    assert (batch.anchor_embeddings_AD[~kept_A] == 0).all()
    assert torch.equal(batch.teacher_hidden_UD[kept_U], expected.teacher_hidden_UD[kept_U])
    assert 0 < kept_U.sum() < kept_U.numel()


def test_compiled_layers_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer's forward is compiled, and the taps lie outside of what is compiled."""
    config = save_model(make_model("llama"), tmp_path)
    compiled_outputs: list[Tensor] = []

    def compile_(function: Callable[..., Tensor], dynamic: bool) -> Callable[..., Tensor]:
        def run(*args: Any, **kwargs: Any) -> Tensor:
            compiled_outputs.append(function(*args, **kwargs))
            return compiled_outputs[-1]

        return run

    plain = load_target(config).features(make_layout(5, 5))
    monkeypatch.setattr(torch, "compile", compile_)
    batch = load_target(TargetConfig(**(config.model_dump() | {"compile": True}))).features(make_layout(5, 5))
    assert torch.equal(batch.features_TF, plain.features_TF)
    assert len(compiled_outputs) == 5
    assert torch.equal(batch.features_TF[:, 16:32], compiled_outputs[2].flatten(0, 1))
