"""A DFlash drafter for Hugging Face transformers, complete in this one file.

    drafter = AutoModel.from_pretrained(FOLDER, trust_remote_code=True)
    tokens = drafter.spec_generate(target, input_ids, max_new_tokens=256)

The drafter has neither embedding nor head: it works with those of its target, any causal language model of transformers.
Shapes: P prompts, C context tokens, B block size, D hidden width, K tapped layers, H/G query/key heads, E head width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel, Qwen3Config


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, rows: Tensor) -> Tensor:
        exact = rows.float()
        exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.eps)
        return (exact * self.weight.float()).to(rows.dtype)


class DraftCache:
    """Keys and values of the context rows seen so far, layer by layer; block rows never enter."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if layer in self.keys:
            keys = torch.cat([self.keys[layer], keys], dim=1)
            values = torch.cat([self.values[layer], values], dim=1)
        self.keys[layer], self.values[layer] = keys, values
        return keys, values


class DFlashAttention(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.layer, self.head_dim, self.eps = layer, config.head_dim, config.rms_norm_eps
        self.theta = float(config.rope_parameters["rope_theta"])
        slides = config.layer_types[layer] == "sliding_attention"
        self.window = config.sliding_window if slides else None
        self.causal = slides and config.dflash_config.get("causal", True)
        query, kv = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv, bias=False)
        self.o_proj = nn.Linear(query, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(self.head_dim, self.eps)
        self.k_norm = RMSNorm(self.head_dim, self.eps)

    def forward(self, rows: Tensor, context: Tensor, position_ids: Tensor, cache: DraftCache) -> Tensor:
        """rows (P, B, D), new context rows (P, C, D), positions of both (P, C + B)."""
        num_context = context.shape[1]
        context_at, block_at = position_ids[:, :num_context], position_ids[:, num_context:]
        keys, values = cache.extend(self.layer, self._keys(context, context_at), self._heads(self.v_proj(context)))
        keys = torch.cat([keys, self._keys(rows, block_at)], dim=1)
        values = torch.cat([values, self._heads(self.v_proj(rows))], dim=1)
        queries = self._turn(self.q_norm(self._heads(self.q_proj(rows))), block_at)
        queries, keys, values = (heads.transpose(1, 2) for heads in (queries, keys, values))
        mask = self._mask(block_at, keys.shape[2])
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.unflatten(-1, (-1, self.head_dim))

    def _keys(self, rows: Tensor, position_ids: Tensor) -> Tensor:
        return self._turn(self.k_norm(self._heads(self.k_proj(rows))), position_ids)

    def _turn(self, heads: Tensor, position_ids: Tensor) -> Tensor:
        exponent = torch.arange(0, self.head_dim, 2, device=heads.device).float() / self.head_dim
        angle = position_ids.float()[:, :, None, None] * (1.0 / self.theta**exponent)
        first, second = heads.float().chunk(2, dim=-1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(heads.dtype)

    def _mask(self, block_at: Tensor, num_keys: int) -> Tensor | None:
        """(P, 1, B, keys), true where seen; keys are consecutive tokens that end with the block. None: all is seen."""
        if self.window is None:
            return None
        num_rows = block_at.shape[1]
        query = torch.arange(num_keys - num_rows, num_keys, device=block_at.device)[:, None]
        key = torch.arange(num_keys, device=block_at.device)[None]
        seen = key > query - self.window
        return (seen & (key <= query) if self.causal else seen)[None, None]


class DFlashMLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(rows)) * self.up_proj(rows))


class DFlashLayer(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DFlashAttention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = DFlashMLP(config)

    def forward(self, rows: Tensor, context: Tensor, position_ids: Tensor, cache: DraftCache) -> Tensor:
        rows = rows + self.self_attn(self.input_layernorm(rows), context, position_ids, cache)
        return rows + self.mlp(self.post_attention_layernorm(rows))


class DFlashDraftModel(PreTrainedModel):
    config_class = Qwen3Config
    base_model_prefix = ""
    _no_split_modules = ["DFlashLayer"]  # noqa: RUF012
    _supports_sdpa = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.block_size = config.dflash_config["block_size"]
        self.mask_token_id = config.dflash_config["mask_token_id"]
        self.target_layer_ids = list(config.dflash_config["target_layer_ids"])
        # 1: position k predicts its own token. 0: it predicts the token after it, the anchor's position included.
        self.first_predicted = 0 if config.dflash_config.get("label_mode") == "next_token" else 1
        self.fc = nn.Linear(len(self.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(DFlashLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_init()

    def forward(
        self,
        position_ids: Tensor,
        noise_embedding: Tensor,
        target_hidden: Tensor,
        past_key_values: DraftCache | None = None,
    ) -> Tensor:
        """Hidden rows (P, B, D) of a block; logits are the target's lm_head of them.

        target_hidden (P, C, K D): tapped layers' outputs of the context tokens that ``past_key_values`` does not hold yet
        (it is extended by them). noise_embedding (P, B, D): the target's embeddings of anchor and mask tokens.
        position_ids (P, C + B): of these context tokens, then of the block. Prompts of one call have one length.
        """
        context = self.hidden_norm(self.fc(target_hidden))
        cache = DraftCache() if past_key_values is None else past_key_values
        rows = noise_embedding
        for layer in self.layers:
            rows = layer(rows, context, position_ids, cache)
        return self.norm(rows)

    @torch.inference_mode()
    def spec_generate(
        self,
        target: PreTrainedModel,
        input_ids: Tensor,
        max_new_tokens: int,
        stop_token_ids: list[int] | None = None,
        temperature: float = 0.0,
    ) -> Tensor:
        """Tokens (1, prompt + new) as the target itself would write them; one prompt, a target whose cache can be cut."""
        stop = torch.tensor(stop_token_ids or [], device=input_ids.device)
        past, cache = DynamicCache(), DraftCache()
        features, choice = self._verify(target, input_ids, past, temperature)
        tokens = torch.cat([input_ids, choice[:, -1:]], dim=1)
        limit = input_ids.shape[1] + max_new_tokens
        while tokens.shape[1] < limit and not torch.isin(tokens[:, -1], stop).any():
            drafted = self._draft(target, tokens, features, cache)
            features, choice = self._verify(target, torch.cat([tokens[:, -1:], drafted], dim=1), past, temperature)
            accepted = int((drafted == choice[:, :-1])[0].long().cumprod(0).sum())
            if accepted < drafted.shape[1]:
                past.crop(accepted - drafted.shape[1])
            features = features[:, : accepted + 1]
            start = tokens.shape[1]
            tokens = torch.cat([tokens, drafted[:, :accepted], choice[:, accepted : accepted + 1]], dim=1)
            stops = torch.isin(tokens[0, start:], stop).nonzero()
            if stops.numel():
                tokens = tokens[:, : start + int(stops[0]) + 1]
        return tokens[:, :limit]

    def _draft(self, target: PreTrainedModel, tokens: Tensor, features: Tensor, cache: DraftCache) -> Tensor:
        anchor = tokens.shape[1] - 1
        block = tokens.new_full((1, self.block_size), self.mask_token_id)
        block[:, 0] = tokens[:, -1]
        position_ids = torch.arange(anchor - features.shape[1], anchor + self.block_size, device=tokens.device)[None]
        embedded = target.get_input_embeddings()(block).to(self.dtype)
        hidden = self(position_ids, embedded, features.to(self.dtype), cache)[:, self.first_predicted :]
        head = target.get_output_embeddings()
        return head(hidden.to(head.weight.dtype)).argmax(-1)

    def _verify(
        self, target: PreTrainedModel, tokens: Tensor, past: DynamicCache, temperature: float
    ) -> tuple[Tensor, Tensor]:
        output = target(tokens, past_key_values=past, use_cache=True, output_hidden_states=True)
        features = torch.cat([output.hidden_states[layer + 1] for layer in self.target_layer_ids], dim=-1)
        if temperature == 0:
            return features, output.logits.argmax(-1)
        probabilities = (output.logits[0].float() / temperature).softmax(-1)
        return features, torch.multinomial(probabilities, 1).T
