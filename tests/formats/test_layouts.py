"""Both layouts: names, shapes and fields as published, round trips bit for bit, hidden rows of a rebuilt drafter."""

import json

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModel

from tests.drafter.small import case_of
from tests.formats.folders import trained, write_target
from tp_dflash.drafter import parameter_shapes
from tp_dflash.formats import (
    PublishedDrafter,
    TargetMatrices,
    layout_of,
    read_published,
    read_speculators,
    read_zlab,
    write_speculators,
    write_zlab,
)
from tp_dflash.formats.contract.folder_view import FolderView
from tp_dflash.formats.speculators import speculators_shape
from tp_dflash.head import DraftVocabulary
from tp_dflash.target import read_head_rows, read_target_facts

VARIANTS = {
    "full": {},
    "sliding": {"num_layers": 3, "sliding_window": 5},
    "bidirectional": {"num_layers": 3, "sliding_window": 5, "sliding_causal": False},
    "next_token": {"label_mode": "next_token"},
}


@pytest.fixture
def target(tmp_path):
    return write_target(tmp_path / "target")


def _config(folder):
    return json.loads((folder / "config.json").read_text())


def _names(folder):
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def _all_bytes(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _context_and_blocks():
    """Context of 1,000 tokens of one document; blocks at its first token and behind its last."""
    return [(0, position) for position in range(1001)], [(0, 0), (0, 1), (0, 1000)]


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("layout", ["zlab", "speculators"])
def test_a_drafter_rebuilt_from_its_folder_gives_the_trained_rows_at_positions_0_and_1000(
    tmp_path, target, variant, layout
):
    drafter, published = trained(target, **variant)
    folder = tmp_path / "export"
    if layout == "zlab":
        write_zlab(folder, published)
    else:
        write_speculators(folder, published, TargetMatrices.read(target, read_target_facts(target), published.dtype))
    (folder / "tp_dflash.json").unlink()  # from what loaders read alone
    rebuilt = read_published(folder)
    assert rebuilt.shape == drafter.shape
    case = case_of(drafter.shape, *_context_and_blocks())
    with torch.no_grad():
        expected_hidden = drafter(*case.inputs())
        hidden = rebuilt.build()(*case.inputs())
    torch.testing.assert_close(hidden, expected_hidden, rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_the_modelling_file_in_the_folder_gives_the_trained_rows(tmp_path, target, variant):
    """transformers alone, with the code that lies in the export."""
    drafter, published = trained(target, **variant)
    write_zlab(tmp_path / "export", published)
    model = AutoModel.from_pretrained(tmp_path / "export", trust_remote_code=True, dtype=torch.float32).eval()
    assert type(model).__module__.startswith("transformers_modules")
    context, blocks = _context_and_blocks()
    case = case_of(drafter.shape, context, blocks)
    block_size = drafter.shape.block_size
    with torch.no_grad():
        expected_hidden = drafter(*case.inputs()).unflatten(0, (len(blocks), block_size))
        embeddings_ABD = drafter._block_rows(case.anchor_embeddings_AD, case.mask_embedding_D)
        for index, (_, anchor) in enumerate(blocks):
            position_ids = torch.arange(anchor + block_size)[None]
            hidden = model(position_ids, embeddings_ABD[index][None], case.features_TF[None, :anchor])
            torch.testing.assert_close(hidden[0], expected_hidden[index], rtol=0, atol=1e-5)


def test_names_shapes_and_fields_of_the_zlab_layout(tmp_path, target):
    drafter, published = trained(target, torch.bfloat16, num_layers=3, sliding_window=5)
    write_zlab(tmp_path / "export", published)
    assert _names(tmp_path / "export") == parameter_shapes(drafter.shape)
    assert len(_names(tmp_path / "export")) == 11 * 3 + 3
    config = _config(tmp_path / "export")
    expected = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": 4,
        "dflash_config": {"block_size": 4, "mask_token_id": 60, "target_layer_ids": [3, 8]},
        "num_target_layers": 12,
        "head_dim": 256,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window": 5,
        "rope_theta": 1e7,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    assert {name: config[name] for name in expected} == expected
    text = json.dumps(config)
    assert not any(foreign in text for foreign in ("partial_rotary", "mrope", "10000,", "linear", "vision", "mtp"))


def test_transformers_reads_the_same_rotary_and_windows_from_the_config(tmp_path, target):
    _, published = trained(target, num_layers=3, sliding_window=5)
    write_zlab(tmp_path / "export", published)
    config = AutoConfig.from_pretrained(tmp_path / "export", trust_remote_code=True)
    assert config.rope_parameters["rope_theta"] == 1e7
    assert config.rope_parameters.get("partial_rotary_factor", 1.0) == 1.0
    assert (config.head_dim, config.sliding_window) == (256, 5)
    assert config.layer_types == ["sliding_attention", "sliding_attention", "full_attention"]


def test_names_and_fields_of_the_speculators_layout(tmp_path, target):
    drafter, published = trained(target)
    matrices = TargetMatrices.read(target, read_target_facts(target), published.dtype)
    write_speculators(tmp_path / "export", published, matrices)
    assert _names(tmp_path / "export") == parameter_shapes(drafter.shape) | {
        "embed_tokens.weight": (61, 24),
        "lm_head.weight": (61, 24),
    }
    config = _config(tmp_path / "export")
    assert config["aux_hidden_state_layer_ids"] == [4, 9]
    assert config["speculators_config"] == {
        "algorithm": "dflash",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"name_or_path": "example/target", "architectures": ["Qwen3ForCausalLM"]},
    }
    assert (config["mask_token_id"], config["block_size"], config["draft_vocab_size"]) == (60, 4, 61)
    assert config["transformer_layer_config"]["hidden_size"] == 24


@pytest.mark.parametrize(
    ("variant", "layout", "expected"),
    [
        ("bidirectional", "zlab", {"dflash_config.causal": False}),
        ("sliding", "zlab", {"dflash_config.causal": None}),
        ("full", "zlab", {"dflash_config.causal": None, "dflash_config.label_mode": None}),
        ("next_token", "zlab", {"dflash_config.label_mode": "next_token", "dflash_config.sample_from_anchor": True}),
        ("bidirectional", "speculators", {"sliding_window_non_causal": True}),
        ("sliding", "speculators", {"sliding_window_non_causal": False}),
        ("full", "speculators", {"sliding_window_non_causal": None, "sample_from_anchor": None}),
        ("next_token", "speculators", {"sample_from_anchor": True}),
    ],
)
def test_what_departs_from_the_usual_is_written_into_the_export(tmp_path, target, variant, layout, expected):
    _, published = trained(target, **VARIANTS[variant])
    if layout == "zlab":
        write_zlab(tmp_path / "export", published)
    else:
        matrices = TargetMatrices.read(target, read_target_facts(target), published.dtype)
        write_speculators(tmp_path / "export", published, matrices)
    config = _config(tmp_path / "export")
    for path, value in expected.items():
        *outer, name = path.split(".")
        fields = config
        for key in outer:
            fields = fields[key]
        assert fields.get(name) == value
    if variant == "next_token" and layout == "speculators":
        assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 4


def test_what_a_speculators_folder_does_not_say_is_read_as_it_is_served(tmp_path, target):
    """Sliding layers whose causality nobody wrote: reader and contract check agree that both ways are meant."""
    _, published = trained(target, **VARIANTS["sliding"])
    matrices = TargetMatrices.read(target, read_target_facts(target), published.dtype)
    write_speculators(tmp_path / "export", published, matrices)
    config = _config(tmp_path / "export")
    for said, causal in ((False, True), (True, False), (None, False)):
        config.pop("sliding_window_non_causal", None)
        fields = config if said is None else {**config, "sliding_window_non_causal": said}
        assert speculators_shape(fields, "here", 8).sliding_causal is causal
        (tmp_path / "export" / "config.json").write_text(json.dumps(fields))
        assert FolderView.read(tmp_path / "export").stated_causality is causal


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("with_record", [True, False])
def test_round_trip_through_both_layouts_is_the_identity(tmp_path, target, variant, dtype, with_record):
    _, published = trained(target, dtype, **variant)
    if not with_record:
        published = PublishedDrafter(published.shape, published.tensors)
    facts = read_target_facts(target)
    write_zlab(tmp_path / "first", published)
    ours = read_zlab(tmp_path / "first")
    name = {} if with_record else {"target_name": "example/target"}
    write_speculators(tmp_path / "second", ours, TargetMatrices.read(target, facts, dtype), **name)
    again, matrices = read_speculators(tmp_path / "second")
    write_zlab(tmp_path / "third", again)
    assert _all_bytes(tmp_path / "first") == _all_bytes(tmp_path / "third")
    write_speculators(tmp_path / "fourth", again, matrices, **name)
    assert _all_bytes(tmp_path / "second") == _all_bytes(tmp_path / "fourth")


def test_reduced_vocabulary_keeps_head_rows_and_the_map(tmp_path, target):
    _, published = trained(target)
    facts = read_target_facts(target)
    counts = torch.arange(facts.vocab_size) % 7
    vocabulary = DraftVocabulary.most_frequent(counts, 20, always=[2])
    write_speculators(tmp_path / "export", published, TargetMatrices.read(target, facts, published.dtype, vocabulary))
    again, matrices = read_speculators(tmp_path / "export")
    assert _config(tmp_path / "export")["draft_vocab_size"] == 20
    ids = matrices.vocabulary.token_ids_W
    assert 2 in ids
    assert ids.shape == (20,)
    expected_ids = sorted(sorted(range(61), key=lambda i: (i != 2, -(i % 7), i))[:20])
    assert ids.tolist() == expected_ids
    assert torch.equal(matrices.head_WD, read_head_rows(target, facts, 0, 61)[ids])
    names = _names(tmp_path / "export")
    assert names["d2t"] == (20,)
    assert names["t2d"] == (61,)
    with safe_open(tmp_path / "export" / "model.safetensors", framework="pt") as file:
        d2t, t2d = file.get_tensor("d2t"), file.get_tensor("t2d")
    assert [w + int(d2t[w]) for w in range(20)] == expected_ids
    assert t2d.nonzero().squeeze(-1).tolist() == expected_ids
    write_speculators(tmp_path / "again", again, matrices)
    assert _all_bytes(tmp_path / "export") == _all_bytes(tmp_path / "again")


def test_a_tied_target_gives_embedding_rows_as_head(tmp_path):
    target = write_target(tmp_path / "tied", tie_word_embeddings=True)
    _, published = trained(target)
    matrices = TargetMatrices.read(target, read_target_facts(target), published.dtype)
    write_speculators(tmp_path / "export", published, matrices)
    _, again = read_speculators(tmp_path / "export")
    assert torch.equal(again.head_WD, again.embeddings_VD)


@pytest.mark.parametrize("shard_bytes", [20_000, 200_000, 10**9])
def test_large_weights_are_written_in_shards_with_an_index(tmp_path, target, shard_bytes):
    _, published = trained(target)
    write_zlab(tmp_path / "export", published, shard_bytes=shard_bytes)
    files = sorted(path.name for path in (tmp_path / "export").glob("*.safetensors"))
    assert (files == ["model.safetensors"]) == (shard_bytes == 10**9)
    again = read_zlab(tmp_path / "export")
    assert all(torch.equal(again.tensors[name], published.tensors[name]) for name in published.tensors)
    if len(files) > 1:
        index = json.loads((tmp_path / "export" / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == sum(t.nbytes for t in published.tensors.values())
        assert sorted(set(index["weight_map"].values())) == files
        model = AutoModel.from_pretrained(tmp_path / "export", trust_remote_code=True)
        assert torch.equal(model.fc.weight, published.tensors["fc.weight"])


def test_dtype_is_a_choice_and_the_config_follows_it(tmp_path, target):
    _, published = trained(target)
    write_zlab(tmp_path / "export", published.converted(torch.bfloat16))
    again = read_zlab(tmp_path / "export")
    assert (again.dtype, _config(tmp_path / "export")["dtype"]) == (torch.bfloat16, "bfloat16")
    assert torch.equal(again.tensors["fc.weight"], published.tensors["fc.weight"].to(torch.bfloat16))


def test_layouts_are_told_apart():
    assert layout_of({"dflash_config": {}}, "x") == "zlab"
    assert layout_of({"speculators_model_type": "dflash"}, "x") == "speculators"
    with pytest.raises(ValueError, match="x: expected dflash_config or speculators_model_type"):
        layout_of({"model_type": "qwen3"}, "x")
