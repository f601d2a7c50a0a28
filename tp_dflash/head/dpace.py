"""Row weights that follow the drafter's own progress: how many acceptances rest on each row."""

from __future__ import annotations

from torch import Tensor


def dpace_weights(label_prob_N: Tensor, valid_N: Tensor, block_size: int, floor: float) -> Tensor:
    """w_j = sum over valid m >= j of prod over valid i <= m of ((1 - a) q_i(y_i) + a), (N,), detached (docs/numerics.md).

    label_prob_N: q(y) of rows that come in whole blocks (N a multiple of ``block_size``); floor: the constant a. Rows that
    are not valid count neither as a factor nor as a term and get 0. The sum over m is the expected number of accepted
    drafts, smoothed; the part from j on is what would be lost if row j were never accepted.
    """
    if label_prob_N.shape[0] % block_size:
        raise ValueError(
            f"dpace: expected whole blocks of {block_size} rows, got {label_prob_N.shape[0]} rows; pad the last block"
        )
    valid_AB = valid_N.view(-1, block_size)
    smoothed_AB = ((1.0 - floor) * label_prob_N.detach().view(-1, block_size) + floor).masked_fill(~valid_AB, 1.0)
    reached_AB = smoothed_AB.cumprod(dim=1).masked_fill(~valid_AB, 0.0)
    later_AB = reached_AB.flip(1).cumsum(dim=1).flip(1)
    return later_AB.masked_fill(~valid_AB, 0.0).reshape(-1)
