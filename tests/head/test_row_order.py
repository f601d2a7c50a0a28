"""The order of rows: buckets hold what they must, each teacher row is projected once, chunks find their teacher."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tp_dflash.head.row_order import order_rows
from tp_dflash.head.row_plan import RowPlan, plan_rows


def _blocks(num_blocks: int, block_size: int, spread: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Active rows and teacher indices of distinct anchors; small ``spread``: heavy overlap in one place."""
    generator = torch.Generator().manual_seed(seed)
    anchors = torch.randperm(max(num_blocks, spread), generator=generator)[:num_blocks]
    position = anchors[:, None] + torch.arange(block_size) - 1
    active = (torch.rand(position.shape, generator=generator) < 0.8) & (torch.arange(block_size) > 0)
    used = position[active]
    unique, index = torch.unique(used, return_inverse=True)
    teacher_index = torch.zeros_like(position)
    teacher_index[active] = index
    return active.flatten(), teacher_index.flatten(), max(1, unique.shape[0])


def _held_teacher(plan: RowPlan, teacher_row_u: torch.Tensor, place: int) -> list[dict[int, int]]:
    """For each chunk, which of this rank's teacher rows lies in which slot while the chunk is computed."""
    held: dict[int, int] = {}
    chunks = []
    for i, (first, end) in enumerate(plan.teacher_pieces()):
        base = (i % plan.num_regions) * plan.region_rows * len(plan.row_ranks) + place * (end - first)
        region = range(
            (i % plan.num_regions) * plan.region_rows * len(plan.row_ranks),
            (i % plan.num_regions + 1) * plan.region_rows * len(plan.row_ranks),
        )
        held = {slot: row for slot, row in held.items() if slot not in region}
        held |= {base + offset: int(teacher_row_u[first + offset]) for offset in range(end - first)}
        chunks.append(dict(held))
    return chunks


@settings(max_examples=80, deadline=None)
@given(
    num_blocks=st.integers(1, 40),
    block_size=st.integers(2, 9),
    spread=st.integers(1, 200),
    chunk=st.integers(1, 60),
    extra_rows=st.integers(0, 30),
    extra_teachers=st.integers(0, 30),
    seed=st.integers(0, 10_000),
)
def test_every_active_row_meets_its_teacher(
    num_blocks: int, block_size: int, spread: int, chunk: int, extra_rows: int, extra_teachers: int, seed: int
) -> None:
    active, teacher_index, num_teachers = _blocks(num_blocks, block_size, spread, seed)
    plan = plan_rows(
        (0, 1),
        active.shape[0],
        chunk_rows=2 * chunk,
        block_size=block_size,
        active_rows=max(1, int(active.sum())) + extra_rows,
        num_teacher_rows=num_teachers + extra_teachers,
        whole_blocks=False,
    )
    order = order_rows(active, teacher_index, num_teachers, plan, place=1)
    assert order.fault.tolist() == [0, 0]
    assert order.row_n.unique().shape == order.row_n.shape
    assert set(torch.nonzero(active).flatten().tolist()) <= set(order.row_n.tolist())
    if plan.shares_teachers:
        assert order.teacher_row_u.shape[0] == num_teachers + extra_teachers < plan.num_rows
    held = _held_teacher(plan, order.teacher_row_u, place=1)
    for i, (start, stop) in enumerate(plan.chunks()):
        for row, slot in zip(order.row_n[start:stop].tolist(), order.slot_n[start:stop].tolist(), strict=True):
            if active[row]:
                assert held[i][slot] == teacher_index[row]


def test_a_teacher_row_for_too_many_rows_is_found() -> None:
    """All but one row share one teacher row: no block structure gives that, and a chunk could miss its teacher."""
    active = torch.ones(400, dtype=torch.bool)
    teacher_index = torch.zeros(400, dtype=torch.int64)
    teacher_index[:40] = torch.arange(40)
    plan = plan_rows((0,), 400, chunk_rows=10, block_size=4, active_rows=None, num_teacher_rows=100, whole_blocks=False)
    assert order_rows(active, teacher_index, 40, plan, place=0).fault[0] == 4


def test_no_more_logits_for_more_rows() -> None:
    for rows in (96, 960, 9600):
        plan = plan_rows(
            (0, 1), rows, chunk_rows=64, block_size=24, active_rows=rows, num_teacher_rows=rows // 3, whole_blocks=False
        )
        assert plan.largest_chunk <= 32
        assert plan.num_regions * plan.region_rows <= 64
