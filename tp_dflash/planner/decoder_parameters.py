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

    @cached_property
    def _shares(self) -> dict[int, int]:
        return {1: self.total}

    def share(self, num_ranks: int) -> int:
        """What each of so many ranks holds of one target; ValueError by name where it cannot be split so."""
        if num_ranks not in self._shares:
            self._shares[num_ranks] = decoder_parameters(self.config, self.facts, num_ranks)
        return self._shares[num_ranks]


def decoder_parameters(config: TargetConfig, facts: TargetFacts, num_ranks: int = 1) -> int:
    """Parameters of the text decoder with its embedding table and without its lm_head, on each of the ranks that share it.

    Projections are split; norms and the embedding table are whole on every rank.
    """
    fields = vars(text_config(load_model_config(config)))
    if facts.text_model_type not in _DENSE or fields.get("attention_bias") or fields.get("mlp_bias"):
        return count_decoder_parameters(config, num_ranks)
    has_norms, has_biases = _DENSE[facts.text_model_type]
    width, query, kv = facts.hidden_size, facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    split = 2 * width * (query + kv) + 3 * width * facts.intermediate_size
    split += query + 2 * kv if has_biases else 0
    whole = 2 * width + (2 * facts.head_dim if has_norms else 0)
    return facts.vocab_size * width + facts.num_layers * (split // num_ranks + whole) + width
