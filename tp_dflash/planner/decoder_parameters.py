"""How many parameters a target's text decoder has, without loading any.

For plain dense decoders the count is arithmetic on the sizes. Any other kind (mixtures of experts, recurrent layers) is
built once on the meta device by transformers: exact, but importing the modelling code takes seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tp_dflash.config.target import TargetConfig
from tp_dflash.target import TargetFacts, count_decoder_parameters
from tp_dflash.target.source import load_model_config, text_config

# Text model types made of RMS norms, grouped-query attention and a gated MLP: (has query/key norms, has q, k, v biases).
_DENSE = {"qwen3": (True, False), "llama": (False, False), "mistral": (False, False), "qwen2": (False, True)}


@dataclass(frozen=True)
class DecoderParameters:
    """A target's count, made when it is first asked for and then kept: a plan tries many settings of one target."""

    config: TargetConfig
    facts: TargetFacts

    @cached_property
    def total(self) -> int:
        return decoder_parameters(self.config, self.facts)


def decoder_parameters(config: TargetConfig, facts: TargetFacts) -> int:
    """Parameters of the text decoder with its embedding table and without its lm_head."""
    fields = vars(text_config(load_model_config(config)))
    if facts.text_model_type not in _DENSE or fields.get("attention_bias") or fields.get("mlp_bias"):
        return count_decoder_parameters(config)
    has_norms, has_biases = _DENSE[facts.text_model_type]
    width, query, kv = facts.hidden_size, facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    layer = 2 * width * (query + kv) + 3 * width * facts.intermediate_size + 2 * width
    layer += 2 * facts.head_dim if has_norms else 0
    layer += query + 2 * kv if has_biases else 0
    return facts.vocab_size * width + facts.num_layers * layer + width
