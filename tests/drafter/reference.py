"""A drafter written a second time, dense and in fp64: the block rules as loops, the network as plain matrix algebra.

It shares nothing with the package but the parameter names and DrafterShape's numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def reference_mask(shape, context, blocks, layer_type: str) -> Tensor:
    """Who sees whom, one pair at a time. context: [(document, position)], blocks: [(document, anchor)]."""
    block_size, window = shape.block_size, shape.sliding_window
    num_context = len(context)
    mask = torch.zeros(len(blocks) * block_size, num_context + len(blocks) * block_size, dtype=torch.bool)
    for b, (document, anchor) in enumerate(blocks):
        for k in range(block_size):
            row = b * block_size + k
            for t, (other, position) in enumerate(context):
                mask[row, t] = document == other and document >= 0 and position < anchor
                if layer_type == "sliding_attention" and position <= anchor + k - window:
                    mask[row, t] = False
            for j in range(block_size):
                seen = True
                if layer_type == "sliding_attention":
                    seen = j > k - window and not (shape.sliding_causal and j > k)
                mask[row, num_context + b * block_size + j] = seen
    return mask


def reference_hidden(shape, parameters, features, anchor_embeddings, mask_embedding, context, blocks) -> Tensor:
    """Hidden rows (N, D) in fp64; everything that comes in is fp64."""
    norm = lambda x, name: x / (x.square().mean(-1, keepdim=True) + shape.rms_norm_eps).sqrt() * parameters[name]  # noqa: E731
    block_size = shape.block_size
    c = norm(features @ parameters["fc.weight"].T, "hidden_norm.weight")
    z = torch.stack([row for a in anchor_embeddings for row in [a] + [mask_embedding] * (block_size - 1)])
    block_positions = [anchor + k for _, anchor in blocks for k in range(block_size)]
    positions = torch.tensor([position for _, position in context] + block_positions, dtype=torch.float64)
    for i, layer_type in enumerate(shape.layer_types):
        layer = f"layers.{i}"
        mask = reference_mask(shape, context, blocks, layer_type)
        x = norm(z, f"{layer}.input_layernorm.weight")
        cx = torch.cat([c, x])
        q = x @ parameters[f"{layer}.self_attn.q_proj.weight"].T
        k = cx @ parameters[f"{layer}.self_attn.k_proj.weight"].T
        v = cx @ parameters[f"{layer}.self_attn.v_proj.weight"].T
        outs = []
        for head in range(shape.num_heads):
            kv = head // (shape.num_heads // shape.num_kv_heads)
            pick = lambda y, h: y[:, h * shape.head_dim : (h + 1) * shape.head_dim]  # noqa: E731
            qh = turn(shape, norm(pick(q, head), f"{layer}.self_attn.q_norm.weight"), positions[len(context) :])
            kh = turn(shape, norm(pick(k, kv), f"{layer}.self_attn.k_norm.weight"), positions)
            scores = (qh @ kh.T / math.sqrt(shape.head_dim)).masked_fill(~mask, -math.inf)
            outs.append(scores.softmax(-1) @ pick(v, kv))
        z = z + torch.cat(outs, -1) @ parameters[f"{layer}.self_attn.o_proj.weight"].T
        x = norm(z, f"{layer}.post_attention_layernorm.weight")
        gate = x @ parameters[f"{layer}.mlp.gate_proj.weight"].T
        up = x @ parameters[f"{layer}.mlp.up_proj.weight"].T
        z = z + (gate / (1 + (-gate).exp()) * up) @ parameters[f"{layer}.mlp.down_proj.weight"].T
    return norm(z, "norm.weight")


def turn(shape, x: Tensor, positions: Tensor) -> Tensor:
    """Multiply the complex numbers x[j] + i x[j + E/2] by exp(i position theta^(-2j/E))."""
    half = shape.head_dim // 2
    frequency = torch.tensor([shape.rope_theta ** (-2 * j / shape.head_dim) for j in range(half)], dtype=torch.float64)
    turned = torch.complex(x[:, :half], x[:, half:]) * torch.exp(1j * positions[:, None] * frequency)
    return torch.cat([turned.real, turned.imag], -1)
