"""Counting a target's parameters by arithmetic gives what building it gives."""

from __future__ import annotations

import pytest

from tp_dflash.config.target import TargetConfig
from tp_dflash.planner.decoder_parameters import decoder_parameters
from tp_dflash.target import count_decoder_parameters, read_target_facts


@pytest.mark.parametrize("model_type", ["qwen3", "llama", "mistral", "qwen2", "qwen3_moe"])
@pytest.mark.parametrize("extra", [{}, {"attention_bias": True}], ids=["plain", "biases"])
def test_arithmetic_equals_the_built_model(model_type: str, extra: dict[str, bool]) -> None:
    shape = {
        "model_type": model_type,
        "num_hidden_layers": 3,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "vocab_size": 53,
        "tie_word_embeddings": False,
        **extra,
    }
    config = TargetConfig(random_weights=True, shape=shape)
    facts = read_target_facts(config)
    assert decoder_parameters(config, facts) == count_decoder_parameters(config)
    if "moe" not in model_type and not extra:
        assert decoder_parameters(config, facts, 2) == count_decoder_parameters(config, 2)
