"""Faults planted one at a time in an export: each is found, named and answered; a sound export has none."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.formats.folders import trained, write_target
from tp_dflash.formats import TargetMatrices, write_speculators, write_zlab
from tp_dflash.formats.contract import check_folder
from tp_dflash.head import DraftVocabulary
from tp_dflash.target import read_target_facts

# As many query as key heads: then q and k have one shape, and a swap shows only in what they hold.
SHAPES = {"full": {"num_kv_heads": 4}, "sliding": {"num_kv_heads": 4, "num_layers": 3, "sliding_window": 6}}


class Export:
    """An export that can be spoilt."""

    def __init__(self, root: Path, layout: str, **shape) -> None:
        self.target = write_target(root / "target")
        self.facts = read_target_facts(self.target)
        self.folder, self.layout = root / "export", layout
        _, published = trained(self.target, torch.bfloat16, **shape)
        if layout == "zlab":
            write_zlab(self.folder, published)
        else:
            write_speculators(self.folder, published, TargetMatrices.read(self.target, self.facts, published.dtype))

    def edit(self, change) -> None:
        path = self.folder / "config.json"
        config = json.loads(path.read_text())
        inner = config["dflash_config" if self.layout == "zlab" else "transformer_layer_config"]
        change(config, config if self.layout == "zlab" else inner, inner if self.layout == "zlab" else config)
        path.write_text(json.dumps(config))

    def edit_tensors(self, change) -> None:
        path = self.folder / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    def faults(self) -> dict[str, str]:
        found = list(check_folder(self.folder, self.target, self.facts))
        assert all(finding.remedy for finding in found if not finding.ok)
        return {finding.subject: finding.line for finding in found if not finding.ok}


def _swap(tensors, first, second):
    tensors[first], tensors[second] = tensors[second], tensors[first]


def _shift_ids(config, network, blocks):
    name = "target_layer_ids" if "target_layer_ids" in blocks else "aux_hidden_state_layer_ids"
    blocks[name] = [layer_id + 1 for layer_id in blocks[name]]


FIELD_FAULTS = {
    "ids shifted by one": (_shift_ids, "layer id convention"),
    "ids beyond the second last layer": (
        lambda c, n, b: b.update({k: [3, 12] for k in b if "layer_ids" in k}),
        "layer ids",
    ),
    "an id too many": (
        lambda c, n, b: b.update({k: [2, 4, 8] for k in b if "layer_ids" in k}),
        "number of tapped layers",
    ),
    "theta 1e4 in both places": (
        lambda c, n, b: n.update(rope_theta=1e4, rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
        "rotary base",
    ),
    "theta 1e4 in the nested place": (lambda c, n, b: n["rope_parameters"].update(rope_theta=1e4), "rotary base"),
    "theta 1e4 in the flat place": (lambda c, n, b: n.update(rope_theta=1e4), "rotary base"),
    "no theta": (lambda c, n, b: (n.pop("rope_theta"), n.pop("rope_parameters")), "rotary base"),
    "partial rotary factor": (lambda c, n, b: n.update(partial_rotary_factor=0.25), "rotary dimension"),
    "partial rotary factor, nested": (
        lambda c, n, b: n["rope_parameters"].update(partial_rotary_factor=0.25),
        "rotary dimension",
    ),
    "M-RoPE": (lambda c, n, b: n["rope_parameters"].update(mrope_section=[1, 2, 1]), "rotary kind"),
    "rope scaling": (lambda c, n, b: n.update(rope_scaling={"rope_type": "yarn", "factor": 4.0}), "rotary kind"),
    "mask is pad": (lambda c, n, b: b.update(mask_token_id=0), "mask token is free"),
    "mask is eos": (lambda c, n, b: b.update(mask_token_id=2), "mask token is free"),
    "mask has no row": (lambda c, n, b: b.update(mask_token_id=61), "mask token exists"),
    "another mask": (lambda c, n, b: b.update(mask_token_id=59), "mask token"),
    "dtype in the config": (lambda c, n, b: (c.update(dtype="float32"), n.update(dtype="float32")), "dtype"),
    "block size": (lambda c, n, b: (c.update(block_size=8), b.update(block_size=8)), "block size"),
    "depth of the target": (lambda c, n, b: c.update(num_target_layers=36), "num_target_layers"),
    "norm epsilon": (lambda c, n, b: n.update(rms_norm_eps=1e-5), "sizes"),
    "vocabulary": (lambda c, n, b: n.update(vocab_size=64), "vocab_size"),
    "key heads": (lambda c, n, b: n.update(num_key_value_heads=2), "tensors"),
    "another activation": (lambda c, n, b: n.update(hidden_act="gelu"), "network"),
    "biases": (lambda c, n, b: n.update(attention_bias=True), "network"),
    "positions": (lambda c, n, b: n.update(max_position_embeddings=512), "sizes"),
    "a layer less": (lambda c, n, b: n.update(num_hidden_layers=1, layer_types=["full_attention"]), "tensors"),
}
TENSOR_FAULTS = {
    "norm gone": (lambda t: t.pop("norm.weight"), "tensors"),
    "norm left at 1": (
        lambda t: t.update({"hidden_norm.weight": torch.ones_like(t["hidden_norm.weight"])}),
        "norm weights",
    ),
    "one tensor missing": (lambda t: t.pop("layers.1.mlp.up_proj.weight"), "tensors"),
    "one renamed": (lambda t: t.update({"model.fc.weight": t.pop("fc.weight")}), "tensors"),
    "one too many": (lambda t: t.update({"layers.0.self_attn.q_proj.bias": torch.zeros(1024).bfloat16()}), "tensors"),
    "q and k swapped": (
        lambda t: _swap(t, "layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight"),
        "tensor contents",
    ),
    "q_norm and k_norm swapped": (
        lambda t: _swap(t, "layers.1.self_attn.q_norm.weight", "layers.1.self_attn.k_norm.weight"),
        "tensor contents",
    ),
    "a NaN": (lambda t: t["fc.weight"][0].fill_(float("nan")), "finite numbers"),
    "one number changed": (lambda t: t["fc.weight"][0, :1].add_(1.0), "tensor contents"),
    "another dtype": (lambda t: t.update({"fc.weight": t["fc.weight"].float()}), "dtype"),
}


@pytest.mark.parametrize("layout", ["zlab", "speculators"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_sound_export_has_no_fault(tmp_path, layout, shape):
    if layout == "speculators" and "sliding_window" in shape:
        shape = shape | {"layer_types": ["sliding_attention"] * 3}
    assert Export(tmp_path, layout, **shape).faults() == {}


@pytest.mark.parametrize("layout", ["zlab", "speculators"])
@pytest.mark.parametrize(("change", "subject"), FIELD_FAULTS.values(), ids=FIELD_FAULTS)
def test_a_wrong_field_is_found(tmp_path, layout, change, subject):
    export = Export(tmp_path, layout, **SHAPES["full"])
    export.edit(change)
    assert subject in export.faults()


@pytest.mark.parametrize("layout", ["zlab", "speculators"])
@pytest.mark.parametrize(("change", "subject"), TENSOR_FAULTS.values(), ids=TENSOR_FAULTS)
def test_a_wrong_tensor_is_found(tmp_path, layout, change, subject):
    export = Export(tmp_path, layout, **SHAPES["full"])
    export.edit_tensors(change)
    assert subject in export.faults()


@pytest.mark.parametrize(
    ("name", "shape", "change"),
    [
        ("zlab", SHAPES["full"], lambda c, n, b: b.update(causal=True)),
        ("zlab", SHAPES["sliding"], lambda c, n, b: b.update(causal=True)),
        ("zlab", SHAPES["sliding"], lambda c, n, b: b.update(causal=False)),
        ("zlab", SHAPES["sliding"] | {"sliding_causal": False}, lambda c, n, b: b.pop("causal")),
        ("speculators", SHAPES["full"], lambda c, n, b: c.update(sliding_window_non_causal=False)),
        (
            "speculators",
            SHAPES["sliding"] | {"layer_types": ["sliding_attention"] * 3},
            lambda c, n, b: c.update(sliding_window_non_causal=True),
        ),
        (
            "speculators",
            SHAPES["sliding"] | {"sliding_causal": False},
            lambda c, n, b: c.update(sliding_window_non_causal=False),
        ),
    ],
)
def test_a_turned_causal_flag_is_found(tmp_path, name, shape, change):
    export = Export(tmp_path, name, **shape)
    assert export.faults() == {}
    export.edit(change)
    assert set(export.faults()) == {"causality inside the block"}


def test_mixed_layers_in_the_speculators_layout_are_named_before_they_are_served(tmp_path):
    """vLLM reads one causality for all layers there: the z-lab layout must be used."""
    faults = Export(tmp_path, "speculators", **SHAPES["sliding"]).faults()
    assert set(faults) == {"causality inside the block"}
    assert "z-lab layout" in faults["causality inside the block"]


@pytest.mark.parametrize(
    "change",
    [
        lambda c, n, b: n.update(sliding_window=4096),
        lambda c, n, b: n.update(layer_types=["full_attention"] * 3),
        lambda c, n, b: n.update(layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
        lambda c, n, b: n.update(sliding_window=None),
    ],
)
def test_other_windows_are_found(tmp_path, change):
    export = Export(tmp_path, "zlab", **SHAPES["sliding"])
    export.edit(change)
    assert "sliding window" in export.faults()


def test_a_window_that_is_switched_off_is_found(tmp_path):
    export = Export(tmp_path, "zlab", **SHAPES["sliding"])
    export.edit(lambda c, n, b: n.update(use_sliding_window=False))
    assert set(export.faults()) == {"sliding window"}


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        (lambda c: c["speculators_config"]["proposal_methods"][0].update(speculative_tokens=4), "drafted tokens"),
        (lambda c: c["speculators_config"].update(proposal_methods=[]), "drafted tokens"),
        (lambda c: c["speculators_config"].pop("verifier"), "named target"),
        (lambda c: c.update(draft_vocab_size=32), "draft_vocab_size"),
    ],
)
def test_wrong_fields_of_the_speculators_layout_alone_are_found(tmp_path, change, subject):
    export = Export(tmp_path, "speculators", **SHAPES["full"])
    export.edit(lambda c, n, b: change(c))
    assert set(export.faults()) == {subject}


@pytest.mark.parametrize("name", ["architectures", "auto_map"])
def test_what_loaders_go_by_in_the_zlab_layout_is_found(tmp_path, name):
    export = Export(tmp_path, "zlab", **SHAPES["full"])
    if name == "auto_map":
        (export.folder / "dflash.py").unlink()
    else:
        export.edit(lambda c, n, b: c.update(architectures=["Qwen3ForCausalLM"]))
    assert set(export.faults()) == {"network"}


def _places(fields, path=()):
    for name, value in fields.items():
        yield (*path, name)
        if isinstance(value, dict):
            yield from _places(value, (*path, name))


@pytest.mark.parametrize("layout", ["zlab", "speculators"])
@pytest.mark.parametrize("value", [None, "x", [1], -1, {}], ids=str)
def test_a_field_of_any_kind_in_any_place_gives_findings_and_no_crash(tmp_path, layout, value):
    """The only error is that the folder cannot be told to be a drafter at all."""
    export = Export(tmp_path, layout, **SHAPES["full"])
    path = export.folder / "config.json"
    sound = path.read_text()
    for place in _places(json.loads(sound)):
        config = json.loads(sound)
        table = config
        for name in place[:-1]:
            table = table[name]
        table[place[-1]] = value
        path.write_text(json.dumps(config))
        tables = ("dflash_config", "transformer_layer_config")
        if place[-1] == "speculators_model_type" or (place[-1] in tables and value != {}):
            with pytest.raises(ValueError, match="expected"):
                export.faults()
        else:
            export.faults()


def test_another_targets_head_is_found(tmp_path):
    export = Export(tmp_path, "zlab", **SHAPES["full"])
    export.target = write_target(tmp_path / "other", seed=1)
    export.facts = read_target_facts(export.target)
    assert set(export.faults()) == {"lm_head"}


@pytest.mark.parametrize("name", ["lm_head.weight", "embed_tokens.weight"])
def test_a_carried_matrix_of_another_model_is_found(tmp_path, name):
    export = Export(tmp_path, "speculators", **SHAPES["full"])
    export.edit_tensors(lambda t: t.update({name: t[name].flip(0)}))
    assert set(export.faults()) == {f"carried {name}"}
    export.edit_tensors(lambda t: t.update({name: torch.zeros(5, 24).bfloat16()}))
    assert f"carried {name}" in export.faults()
    export.edit_tensors(lambda t: t.pop(name))
    assert f"carried {name}" in export.faults()


def test_a_reduced_vocabulary_is_compared_by_its_own_map(tmp_path):
    export = Export(tmp_path, "speculators", **SHAPES["full"])
    _, published = trained(export.target, torch.bfloat16, **SHAPES["full"])
    vocabulary = DraftVocabulary(torch.arange(0, 61, 3), 61)
    write_speculators(
        export.folder, published, TargetMatrices.read(export.target, export.facts, published.dtype, vocabulary)
    )
    assert export.faults() == {}
    export.edit_tensors(lambda t: t["d2t"][4:-1].add_(1))
    assert set(export.faults()) == {"draft vocabulary", "carried lm_head.weight"}
    export.edit_tensors(lambda t: t["d2t"][-1:].add_(1))
    assert set(export.faults()) == {"draft vocabulary"}


def test_other_tokenizers_and_templates_are_found(tmp_path):
    export = Export(tmp_path, "zlab", **SHAPES["full"])
    (tmp_path / "target" / "tokenizer.json").write_text("{}")
    (tmp_path / "target" / "chat_template.jinja").write_text("{{ other }}")
    assert set(export.faults()) == {"tokenizer", "chat template"}


def test_labels_that_no_server_decodes_are_named(tmp_path):
    export = Export(tmp_path, "zlab", label_mode="next_token", **SHAPES["full"])
    assert set(export.faults()) == {"label mode"}
    export = Export(tmp_path / "again", "zlab", **SHAPES["full"])
    export.edit(lambda c, n, b: b.update(label_mode="next_token"))
    assert set(export.faults()) == {"label mode"}


@pytest.mark.parametrize(
    "name",
    [
        "ids beyond the second last layer", "an id too many", "theta 1e4 in both places", "theta 1e4 in the flat place",
        "partial rotary factor", "M-RoPE", "mask is pad", "mask has no row", "dtype in the config", "vocabulary", "key heads",
    ],
)  # fmt: skip
def test_folders_of_others_are_held_against_the_target(tmp_path, name):
    """Without a record the target's own config is the measure."""
    export = Export(tmp_path, "zlab", **SHAPES["full"])
    (export.folder / "tp_dflash.json").unlink()
    assert export.faults() == {}
    change, subject = FIELD_FAULTS[name]
    export.edit(change)
    assert subject in export.faults()


def test_the_figure_says_both_values_and_the_line_says_what_to_do(tmp_path):
    export = Export(tmp_path, "zlab", **SHAPES["full"])
    export.edit(_shift_ids)
    line = export.faults()["layer id convention"]
    assert line.startswith("WRONG  layer id convention: [4, 9], but [3, 8] as trained (all shifted by +1)")
    assert line.endswith("-> write target_layer_ids [3, 8] into config.json")
