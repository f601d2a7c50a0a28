"""Reduced drafter vocabularies: the published tables, labels that fall out, and the sharded loss over the kept rows."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.ranks import run_ranks
from tp_dflash.config.objective import Objective
from tp_dflash.head import DraftVocabulary, HeadShard, dense_head_loss, sharded_head_loss

KEPT = torch.tensor([9, 2, 3, 7, 11, 16, 17])


def test_published_tables_and_their_inverse() -> None:
    reduced = DraftVocabulary.keep(KEPT, 20)
    assert reduced.d2t.tolist() == [2, 2, 5, 6, 7, 11, 11]
    assert reduced.token_ids_W.tolist() == [2, 3, 7, 9, 11, 16, 17]
    assert torch.nonzero(reduced.t2d).flatten().tolist() == [2, 3, 7, 9, 11, 16, 17]
    assert reduced.to_target(torch.tensor([0, 6, -1])).tolist() == [2, 17, -1]


def test_target_ids_where_offsets_belong_are_refused() -> None:
    kept = DraftVocabulary.keep(KEPT, 20)
    with pytest.raises(ValueError, match="offsets"):
        DraftVocabulary.from_tables(kept.token_ids_W, kept.t2d)
    with pytest.raises(ValueError, match="int64"):
        DraftVocabulary.from_tables(kept.d2t.int(), kept.t2d)


def test_labels_outside_lose_their_weight_and_wrong_ones_keep_it() -> None:
    reduced = DraftVocabulary.keep(KEPT, 20)
    labels, weights = reduced.labels(torch.tensor([2, 17, 4, 20, -100]), torch.tensor([1.0, 0.5, 1.0, 1.0, 0.0]))
    assert labels.tolist() == [0, 6, -1, -1, -1]
    assert weights.tolist() == [1.0, 0.5, 0.0, 1.0, 0.0]


def _reduced(rank: int, size: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    target_head = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    drafter_head = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    hidden, teacher = torch.randn(2, 12, 5, generator=generator, dtype=torch.float64)
    target_labels = torch.randint(20, (12,), generator=generator)
    reduced = DraftVocabulary.keep(KEPT, 20)
    labels, weights = reduced.labels(target_labels, torch.ones(12))
    vocab = reduced.shard(size, rank)
    hidden.requires_grad_()
    weight = drafter_head[vocab.start : vocab.stop].clone().requires_grad_()
    result = sharded_head_loss(
        hidden,
        teacher,
        torch.arange(12),
        labels,
        weights,
        drafter_head=HeadShard(weight, vocab),
        teacher_head=HeadShard(target_head[reduced.teacher_rows(vocab)], vocab),
        objective=Objective(),
        block_size=4,
        group=dist.group.WORLD if size > 1 else None,
        chunk_rows=5,
    )
    result.loss_sum.backward()
    expected_hidden = hidden.detach().clone().requires_grad_()
    expected_weight = drafter_head.clone().requires_grad_()
    expected = dense_head_loss(
        expected_hidden,
        teacher,
        torch.arange(12),
        labels,
        weights,
        drafter_weight_VD=expected_weight,
        teacher_weight_VD=target_head[reduced.token_ids_W],
        objective=Objective(),
        block_size=4,
    )
    expected.loss_sum.backward()
    torch.testing.assert_close(result.loss_sum, expected.loss_sum)
    assert hidden.grad is not None
    torch.testing.assert_close(hidden.grad, expected_hidden.grad)
    assert weight.grad is not None
    assert expected_weight.grad is not None
    # Every rank brings the same rows here, so the head's gradient counts them once a rank.
    torch.testing.assert_close(weight.grad, size * expected_weight.grad[vocab.start : vocab.stop])
    return reduced.to_target(result.statistics.argmax_N), result.statistics.valid_N


@pytest.mark.parametrize("size", [1, 3])
def test_sharded_over_the_kept_rows(size: int) -> None:
    for argmax, valid in run_ranks(_reduced, size, size) if size > 1 else [_reduced(0, 1)]:
        assert set(argmax[valid].tolist()) <= set(KEPT.tolist())
        assert (argmax[~valid] == -1).all()
