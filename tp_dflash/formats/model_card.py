"""The README of a published drafter: what it is for, how it was trained, what it reached, how it is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tp_dflash.formats.published_drafter import PublishedDrafter


def model_card(drafter: PublishedDrafter) -> str:
    """Markdown with the metadata block that model hubs read; a function of the drafter and its record alone."""
    shape, record = drafter.shape, drafter.record
    target = "its target" if record is None else record.target.name_or_path
    drafted = shape.block_size - shape.first_predicted
    size = f"{shape.num_parameters / 1e6:,.1f} M parameters in {drafter.dtype_name}"
    sections = [
        _metadata(None if record is None else record.target.name_or_path),
        f"# DFlash drafter for {target}",
        f"Drafts {drafted} tokens at once for speculative decoding with {target}: blocks of {shape.block_size}, mask token "
        f"{shape.mask_token_id}, {shape.num_layers} layers ({size}). It reads the outputs of the target's layers "
        f"{', '.join(map(str, shape.target_layer_ids))} (counted from 0, of {shape.num_target_layers}), and uses the target's "
        "embedding and lm_head; it has none of its own.",
        f"Attention: {_attention(drafter)}. Rotary embedding over the whole head, base {shape.rope_theta:g}. Labels: "
        f"{'the token at each position' if shape.label_mode == 'same_position' else 'the token after each position'}.",
    ]
    if record is not None:
        for title, facts in (("Recipe", record.recipe), ("Data", record.data), ("Results", record.results)):
            if facts:
                sections += [f"## {title}", _table(facts)]
    sections += ["## Use", _USE.format(drafted=drafted, target=target)]
    return "\n\n".join(section.strip("\n") for section in sections) + "\n"


def _metadata(target: str | None) -> str:
    lines = ["---", "library_name: transformers"]
    if target is not None:
        lines.append(f"base_model: {json.dumps(target)}")
    return "\n".join([*lines, "tags:", "- dflash", "- speculative-decoding", "---"])


def _attention(drafter: PublishedDrafter) -> str:
    shape = drafter.shape
    if shape.sliding_window is None:
        return "every layer sees all earlier context and its whole block"
    sliding = [str(i) for i, kind in enumerate(shape.layer_types) if kind == "sliding_attention"]
    inside = "causal" if shape.sliding_causal else "bidirectional"
    return (
        f"layers {', '.join(sliding)} slide (window {shape.sliding_window}, {inside} in the block), the others see all"
    )


def _table(facts: Mapping[str, Any]) -> str:
    rows = [f"| {name} | {_cell(value)} |" for name, value in _flat(facts)]
    return "\n".join(["| | |", "|---|---|", *rows])


def _flat(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in facts.items():
        if isinstance(value, dict) and value:
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", value))
    return rows


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    return text.replace("|", "\\|").replace("\n", " ")


_USE = """
```bash
vllm serve {target} --speculative-config '{{"method": "dflash", "model": "PATH_OF_THIS_FOLDER", "num_speculative_tokens": {drafted}}}'
```

```bash
python -m sglang.launch_server --model-path {target} --speculative-algorithm DFLASH --speculative-draft-model-path PATH_OF_THIS_FOLDER
```
"""
