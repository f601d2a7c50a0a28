"""The modelling file of an export decodes with a target: the target's own greedy tokens, whatever the drafter drafts."""

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, Qwen3Config

from tests.formats.folders import TEXT_CONFIG, trained, write_target
from tp_dflash.formats import write_zlab


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {name: value for name, value in TEXT_CONFIG.items() if not name.startswith("rope")} | {"head_dim": 8}
    config = Qwen3Config(**{name: value for name, value in sizes.items() if name != "model_type"})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.mark.parametrize("variant", [{}, {"label_mode": "next_token"}, {"num_layers": 3, "sliding_window": 5}], ids=str)
def test_greedy_output_is_the_targets_own(tmp_path, model, variant):
    _, published = trained(write_target(tmp_path / "target"), **variant)
    write_zlab(tmp_path / "export", published)
    drafter = AutoModel.from_pretrained(tmp_path / "export", trust_remote_code=True, dtype=torch.float32)
    for seed, length in ((1, 1), (2, 7), (3, 20)):
        prompt = torch.randint(3, 61, (1, length), generator=torch.Generator().manual_seed(seed))
        expected = model.generate(prompt, max_new_tokens=25, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert torch.equal(drafter.spec_generate(model, prompt, max_new_tokens=25), expected)
        stop = int(expected[0, length + 9])
        stopped = drafter.spec_generate(model, prompt, max_new_tokens=25, stop_token_ids=[stop])
        first = (expected[0, length:] == stop).nonzero()[0]
        assert torch.equal(stopped, expected[:, : length + int(first) + 1])


def test_accepted_drafts_hand_over_exactly_their_context_rows(tmp_path, model):
    """Drafts are the target's own tokens with an error here and there: every length of an accepted run occurs."""
    drafter, published = trained(write_target(tmp_path / "target"))
    write_zlab(tmp_path / "export", published)
    loaded = AutoModel.from_pretrained(tmp_path / "export", trust_remote_code=True, dtype=torch.float32)
    prompt = torch.randint(3, 61, (1, 6), generator=torch.Generator().manual_seed(4))
    expected = model.generate(prompt, max_new_tokens=60, do_sample=False, eos_token_id=None, pad_token_id=0)
    with torch.no_grad():
        hidden = model(expected, output_hidden_states=True).hidden_states
    expected_features = torch.cat([hidden[layer + 1] for layer in drafter.shape.target_layer_ids], dim=-1)
    received, runs = [], []

    def draft(target, tokens, features, cache):
        received.append(features)
        start = tokens.shape[1]
        drafted = torch.nn.functional.pad(expected, (0, 3))[:, start : start + 3].clone()
        run = len(runs) % 4
        runs.append(run)
        if run < 3:
            drafted[0, run] = (drafted[0, run] + 1) % 61
        return drafted

    loaded._draft = draft
    assert torch.equal(loaded.spec_generate(model, prompt, max_new_tokens=60), expected)
    assert set(runs) == {0, 1, 2, 3}
    rows = torch.cat(received, dim=1)
    torch.testing.assert_close(rows, expected_features[:, : rows.shape[1]], rtol=1e-4, atol=1e-4)
