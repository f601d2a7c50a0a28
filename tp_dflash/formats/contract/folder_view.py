"""A published folder as it lies there, faults included: fields and tensor headers, without building anything of them.

Reading for use (``read_published``) stops at the first contradiction; a check must see all of them, so this view builds
nothing: it takes every field as it stands, and a missing one as missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tp_dflash.drafter import DrafterShape
from tp_dflash.formats.config_file import read_config
from tp_dflash.formats.contract.field_types import Misfits, well_typed
from tp_dflash.formats.detect import Layout, layout_of
from tp_dflash.formats.fields import required, speculators_causal
from tp_dflash.formats.training_record import TrainingRecord
from tp_dflash.formats.weights import read_headers

_CONFIG_PLACES = {"zlab": "dflash_config", "speculators": "transformer_layer_config"}


@dataclass(frozen=True)
class FolderView:
    """network: the Qwen3 fields. headers: (dtype, shape) of every tensor. record: as trained, None for a foreign folder.

    misfits: fields of the wrong kind, with what was wrong; they are left out of config and network.
    """

    folder: Path
    layout: Layout
    config: dict[str, Any]
    network: dict[str, Any]
    headers: dict[str, tuple[str, tuple[int, ...]]]
    record: TrainingRecord | None
    misfits: Misfits

    @staticmethod
    def read(folder: Path) -> FolderView:
        """ValueError only where there is nothing to look at: no config.json of a drafter, no readable weights."""
        misfits: Misfits = {}
        config = well_typed(read_config(folder), misfits)
        layout = layout_of(config, str(folder))
        inner = config.get(_CONFIG_PLACES[layout])
        if inner is None:
            raise ValueError(
                f"{folder}: expected a table {_CONFIG_PLACES[layout]} in config.json, got none; export again"
            )
        network = config if layout == "zlab" else inner
        return FolderView(folder, layout, config, network, read_headers(folder), TrainingRecord.read(folder), misfits)

    @property
    def measure(self) -> str:
        """Where expected values come from, as a figure says it."""
        return "by the usual choice" if self.record is None else "as trained"

    @property
    def blocks(self) -> dict[str, Any]:
        """The table that says block size, mask token and layer ids in this layout."""
        return self.config["dflash_config"] if self.layout == "zlab" else self.config

    @property
    def layer_ids(self) -> list[int]:
        """Tapped layers by the output that is taken, whatever the layout counts."""
        name, shift = ("target_layer_ids", 0) if self.layout == "zlab" else ("aux_hidden_state_layer_ids", 1)
        return [layer_id - shift for layer_id in self.blocks.get(name, [])]

    @property
    def num_layers(self) -> int:
        return int(self.network.get("num_hidden_layers") or 0)

    @property
    def layer_types(self) -> list[str]:
        return list(self.network.get("layer_types") or ["full_attention"] * self.num_layers)

    @property
    def served_causality(self) -> list[bool]:
        """Whether each layer is causal inside the block, as vLLM 0.32 reads this layout."""
        sliding = [kind == "sliding_attention" for kind in self.layer_types]
        if self.layout == "zlab":
            override = self.blocks.get("causal")
            return sliding if override is None else [bool(override)] * len(sliding)
        return [speculators_causal(self.config)] * len(sliding)

    @property
    def stated_causality(self) -> bool:
        """Whether the folder says that its sliding layers were trained causal; what it does not say is as it is served."""
        if self.layout == "zlab":
            return self.blocks.get("causal") is not False
        return speculators_causal(self.config)

    @property
    def label_mode(self) -> str:
        """same_position unless the folder says otherwise."""
        if self.layout == "speculators":
            return "next_token" if self.config.get("sample_from_anchor") else "same_position"
        return str(self.blocks.get("label_mode") or "same_position")

    @property
    def rope_bases(self) -> dict[str, float]:
        """Every base of the rotary frequencies that the config states, by its place."""
        places = {
            "rope_parameters.rope_theta": (self.network.get("rope_parameters") or {}).get("rope_theta"),
            "rope_theta": self.network.get("rope_theta"),
        }
        return {place: float(value) for place, value in places.items() if value is not None}

    @property
    def body(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the drafter's own tensors (without the target's matrices that the speculators layout carries)."""
        carried = {"embed_tokens.weight", "lm_head.weight", "d2t", "t2d"} if self.layout == "speculators" else set()
        return {name: shape for name, (_, shape) in self.headers.items() if name not in carried}

    def shape(self) -> DrafterShape:
        """The network that the sizes in config.json describe, whatever the other fields say; ValueError if a size is missing."""
        source = str(self.folder)
        network = {name: required(self.network, name, source) for name in ("hidden_size", "num_attention_heads")}
        heads = network["num_attention_heads"]
        return DrafterShape(
            hidden_size=network["hidden_size"],
            intermediate_size=required(self.network, "intermediate_size", source),
            num_heads=heads,
            num_kv_heads=self.network.get("num_key_value_heads") or heads,
            head_dim=self.network.get("head_dim") or network["hidden_size"] // heads,
            layer_types=tuple("full_attention" for _ in range(self.num_layers)),
            sliding_window=None,
            sliding_causal=True,
            rope_theta=next(iter(self.rope_bases.values()), 1.0),
            rms_norm_eps=float(self.network.get("rms_norm_eps") or 1e-6),
            block_size=int(self.config.get("block_size") or self.blocks.get("block_size") or 2),
            mask_token_id=int(self.blocks.get("mask_token_id") or 0),
            label_mode="same_position",
            target_layer_ids=tuple(self.layer_ids),
            num_target_layers=int(self.config.get("num_target_layers") or 0),
            vocab_size=int(self.network.get("vocab_size") or 0),
            max_positions=int(self.network.get("max_position_embeddings") or 0),
        )
