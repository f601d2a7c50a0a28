"""The card of an export: what a reader needs, and a metadata block that hubs can parse."""

import json

import pytest

from tests.formats.folders import trained, write_target
from tp_dflash.formats import PublishedDrafter
from tp_dflash.formats.model_card import model_card

yaml = pytest.importorskip("yaml")


@pytest.fixture
def published(tmp_path):
    return trained(write_target(tmp_path / "target"), num_layers=3, sliding_window=5)[1]


def test_it_names_target_recipe_data_and_results(published):
    card = model_card(published)
    _, metadata, text = card.split("---\n", 2)
    assert yaml.safe_load(metadata) == {
        "library_name": "transformers",
        "base_model": "example/target",
        "tags": ["dflash", "speculative-decoding"],
    }
    for fact in (
        "# DFlash drafter for example/target",
        "Drafts 3 tokens at once",
        "layers 3, 8 (counted from 0, of 12)",
        "layers 0, 1 slide (window 5, causal in the block)",
        "| learning_rate | 0.0006 |",
        "| objective.ce | 1 |",
        "| documents | 300 |",
        "| acceptance_length.gsm8k | 1.71 |",
        "--speculative-algorithm DFLASH",
    ):
        assert fact in text


def test_the_serving_command_holds_valid_json(published):
    card = model_card(published)
    command = next(line for line in card.splitlines() if line.startswith("vllm serve"))
    assert json.loads(command.split("'")[1]) == {
        "method": "dflash",
        "model": "PATH_OF_THIS_FOLDER",
        "num_speculative_tokens": 3,
    }


def test_a_drafter_without_a_record_gets_a_card_without_claims(published):
    card = model_card(PublishedDrafter(published.shape, published.tensors))
    assert "base_model" not in card
    assert not any(title in card for title in ("## Recipe", "## Data", "## Results"))


def test_texts_cannot_break_the_table(published):
    from dataclasses import replace

    record = replace(published.record, recipe={"note": "a|b\nc", "empty": {}})
    card = model_card(PublishedDrafter(published.shape, published.tensors, record))
    assert "| note | a\\|b c |" in card
    assert "| empty | {} |" in card
