"""Whether a token id can stand for the masked positions of a block."""

from __future__ import annotations

from collections.abc import Collection


def check_mask_token(mask_token_id: int, num_embeddings: int, special_token_ids: Collection[int]) -> None:
    """ValueError unless the id is an existing embedding row of the target that is no padding, begin or end token.

    num_embeddings: rows of the target's embedding table, which may be more than the tokenizer knows: a reserved row
    beyond the tokenizer is the best choice. That the id does not occur in the data is checked where the data is read.
    """
    advice = "set drafter.mask_token_id to an unused row, such as a reserved or never written special token"
    if not 0 <= mask_token_id < num_embeddings:
        raise ValueError(
            f"expected a mask token within the target's {num_embeddings} embedding rows, got {mask_token_id}: a token "
            f"added to the tokenizer alone has no row; {advice}"
        )
    if mask_token_id in special_token_ids:
        raise ValueError(
            f"expected an otherwise unused mask token, got {mask_token_id}, which is one of the target's padding, begin "
            f"and end tokens {sorted(special_token_ids)}; {advice}"
        )
