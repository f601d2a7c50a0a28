"""The drafter network: context features and block embeddings in, one hidden row a block row out.

It owns neither embedding nor head: anchor and mask embeddings come in, logits are made elsewhere. It never sees token
ids, labels or the target model.

Memory of a training step (D hidden width, I MLP width, M = T + N rows of keys): features are kept once in the dtype they
come in and need no gradient; context and its value before the norm, 2 T D; a layer keeps about N (7 D + 2 I) + T G E +
2 M G E x 1.5 numbers: inputs of its norms and matrices, gate and up of the MLP (their product is recomputed), keys
before and after norm and turn, values. Norms keep their input and one number a row, rotary turns keep nothing.
"""

from __future__ import annotations

from typing import cast

import torch
from einops import repeat
from torch import Tensor, nn

from tp_dflash.blocks import BlockGeometry
from tp_dflash.drafter.context_cache import ContextCache
from tp_dflash.drafter.layer import DrafterLayer
from tp_dflash.drafter.norm import RMSNorm
from tp_dflash.drafter.parameters import initial_parameter, set_parameter
from tp_dflash.drafter.plan import AttentionPlan, Backend
from tp_dflash.drafter.rotary import Rotary
from tp_dflash.drafter.shape import DrafterShape


class Drafter(nn.Module):
    """A DFlash drafter with the published parameter names (docs/blocks.md, docs/formats.md).

    Parameters start uninitialised (they may be made on the meta device, sharded, and given storage first): call
    ``initialise`` or load them. Computes in its parameters' dtype as it is when forward runs, so FSDP2's bf16 gathers
    over fp32 masters need no cast here; rotary angles and norm statistics are fp32 always.
    """

    def __init__(
        self,
        shape: DrafterShape,
        *,
        attention: Backend = "auto",
        activation_checkpointing: bool = False,
        compile_layers: bool = False,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.attention: Backend = attention
        self.fc = nn.Linear(shape.feature_size, shape.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.layers = nn.ModuleList(
            DrafterLayer(shape, layer_type, checkpointing=activation_checkpointing, compiled=compile_layers)
            for layer_type in shape.layer_types
        )
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(
        self,
        features_TF: Tensor,
        anchor_embeddings_AD: Tensor,
        mask_embedding_D: Tensor,
        geometry: BlockGeometry,
    ) -> Tensor:
        """Hidden rows (N, D) of a packed micro-step, after the final norm; N = A x B in the geometry's order.

        Padding context rows (features 0) are seen by nobody; padding blocks give finite rows that touch no other row.
        """
        self._check(features_TF, anchor_embeddings_AD, mask_embedding_D, geometry)
        plan = AttentionPlan.packed(self.shape, geometry, self.attention)
        context_1TD = self._context(features_TF[None])
        hidden_1ND = self._block_rows(anchor_embeddings_AD, mask_embedding_D).flatten(0, 1)[None]
        for layer in self.layers:
            hidden_1ND = layer(hidden_1ND, context_1TD, plan)
        return self.norm(hidden_1ND[0])

    def new_cache(self, num_prompts: int, device: torch.device) -> ContextCache:
        """An empty cache for decoding ``num_prompts`` prompts together."""
        return ContextCache(self.shape, num_prompts, device)

    @torch.no_grad()
    def extend(self, cache: ContextCache, features_PSF: Tensor, count_P: Tensor) -> None:
        """Append context rows: the first count_P (int64, CPU) of S right-padded rows belong to each prompt."""
        position_PS = (cache.length_P[:, None] + torch.arange(features_PSF.shape[1])).to(features_PSF.device)
        rotary = Rotary(position_PS, self.shape.rope_theta)
        context_PSD = self._context(features_PSF)
        for index, layer in enumerate(self._typed_layers()):
            cache.write(index, *layer.context_keys_values(context_PSD, rotary), count_P)
        cache.advance(count_P)

    @torch.no_grad()
    def draft(self, cache: ContextCache, anchor_embeddings_PD: Tensor, mask_embedding_D: Tensor) -> Tensor:
        """Hidden rows (P, B, D) of one block a prompt, whose anchor stands right behind the prompt's cached rows."""
        hidden_PBD = self._block_rows(anchor_embeddings_PD, mask_embedding_D)
        plan = AttentionPlan.cached(self.shape, cache.length_P, cache.longest, hidden_PBD.device)
        for index, layer in enumerate(self._typed_layers()):
            hidden_PBD = layer.draft(hidden_PBD, *cache.layer(index, hidden_PBD.dtype), plan)
        return self.norm(hidden_PBD)

    def initialise(self, seed: int, std: float = 0.02) -> None:
        """Set every parameter from (seed, its name), the same whatever the ranks, the sharding or the device."""
        for name, parameter in self.named_parameters():
            if parameter.is_meta:
                raise ValueError(f"expected storage for {name}, got the meta device; call to_empty(device=...) first")
            set_parameter(parameter, initial_parameter(name, tuple(parameter.shape), seed, std))

    def _typed_layers(self) -> list[DrafterLayer]:
        return cast(list[DrafterLayer], list(self.layers))

    def _context(self, features: Tensor) -> Tensor:
        return self.hidden_norm(self.fc(features.to(self.fc.weight.dtype)))

    def _block_rows(self, anchor_embeddings_AD: Tensor, mask_embedding_D: Tensor) -> Tensor:
        """Rows (A, B, D) of every block before the first layer: the anchor's embedding, then the mask token's."""
        mask_ABD = repeat(mask_embedding_D, "D -> A B D", A=anchor_embeddings_AD.shape[0], B=self.shape.block_size - 1)
        rows_ABD = torch.cat([anchor_embeddings_AD[:, None].to(mask_ABD.dtype), mask_ABD], dim=1)
        return rows_ABD.to(self.norm.weight.dtype)

    def _check(
        self, features_TF: Tensor, anchor_embeddings_AD: Tensor, mask_embedding_D: Tensor, geometry: BlockGeometry
    ) -> None:
        if geometry is None:
            raise ValueError(
                "expected a geometry, got None: without it every row would see every other; pass the batch's"
            )
        shape = self.shape
        expected = {
            "features": (geometry.num_context, shape.feature_size),
            "anchor embeddings": (geometry.num_blocks, shape.hidden_size),
            "mask embedding": (shape.hidden_size,),
        }
        got = {
            "features": tuple(features_TF.shape),
            "anchor embeddings": tuple(anchor_embeddings_AD.shape),
            "mask embedding": tuple(mask_embedding_D.shape),
        }
        if expected != got or geometry.block_size != shape.block_size:
            raise ValueError(
                f"expected {expected} and blocks of {shape.block_size}, got {got} and blocks of {geometry.block_size}; "
                "the batch must be made for this drafter's target, taps and block size"
            )
