"""The parts of a target that drafter ranks own: rows of its lm_head and of its embedding table.

In: the target section, its facts, row numbers. Out: those rows on the asked device, from the files or made up. A drafter
rank never loads the target: it reads its vocab range of the head, and the embedding of the mask token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tp_dflash.config.target import TargetConfig
from tp_dflash.target.facts import TargetFacts
from tp_dflash.target.random_rows import random_rows
from tp_dflash.target.source import target_folder
from tp_dflash.target.weight_files import WeightFiles

CPU = torch.device("cpu")


def read_head_rows(
    config: TargetConfig, facts: TargetFacts, start: int, stop: int, device: torch.device = CPU
) -> Tensor:
    """lm_head rows start..stop-1, (stop - start, D), in the target's dtype.

    The model's logits are facts.logit_scale x head @ last_hidden_state; features() has that factor in its teacher rows.
    """
    if config.random_weights:
        name = "embedding" if facts.tied else "lm_head"
        return random_rows(name, start, stop, facts.hidden_size, facts.dtype, device)
    files = WeightFiles(target_folder(config))
    return files.rows(files.head_key(facts.tied), start, stop).to(device, facts.dtype)


def read_embedding_rows(
    config: TargetConfig, facts: TargetFacts, ids: Sequence[int], device: torch.device = CPU
) -> Tensor:
    """Embeddings of the given token ids as the target's embedding module gives them, (len(ids), D), in its dtype."""
    outside = [row for row in ids if not 0 <= row < facts.vocab_size]
    if outside:
        raise ValueError(
            f"expected token ids within the target's {facts.vocab_size} embedding rows, got {outside}; a token added to "
            "the tokenizer alone has no row"
        )
    if config.random_weights:
        drawn = [random_rows("embedding", row, row + 1, facts.hidden_size, facts.dtype, device) for row in ids]
        rows = torch.cat(drawn) if drawn else torch.empty(0, facts.hidden_size, dtype=facts.dtype, device=device)
    else:
        files = WeightFiles(target_folder(config))
        rows = files.picked_rows(files.table_key(), ids).to(device, facts.dtype)
    if facts.embedding_scale == 1.0:
        return rows
    # The module rounds its factor to the table's dtype before it multiplies.
    return rows * torch.tensor(facts.embedding_scale, dtype=torch.float32).to(device, facts.dtype)
