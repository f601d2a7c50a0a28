"""Features from files are those the target would send, whole or not there, and refused where they are of something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.streams.pools import CPU, tensors
from tests.target.models import load_target, make_model, save_model
from tp_dflash.blocks import AnchorCaps, BlockLayout, Document, FeatureBatch, FixedShapes, Pack
from tp_dflash.streams import CachedFeatures, FeatureCacheWriter, LocalFeatures, PayloadShapes, StreamError
from tp_dflash.streams.cache_files import cache_bytes, check_disk, complete_cache
from tp_dflash.target import Target

SHAPES = PayloadShapes(FixedShapes(64, 12, 48), 3 * 16, 16, torch.float32)
IDENTITY = {"target": "tiny", "layers": [0, 2, 3]}
LENGTHS = (20, 9, 13, 5, 6, 31, 2, 17)


def document(number: int) -> Document:
    """Supervised in stretches; documents of ids from 8 on are further uses of the same eight."""
    length = LENGTHS[number % 8]
    generator = torch.Generator().manual_seed(number % 8)
    tokens_S = torch.randint(3, 67, (length,), generator=generator)
    return Document(
        number, tokens_S, torch.arange(length) % 7 > 1 if length > 2 else torch.ones(length, dtype=torch.bool)
    )


def pack(pack_id: int, *numbers: int, epoch: int = 0) -> Pack:
    return Pack(pack_id, epoch, tuple(document(number) for number in numbers))


PACKS = [pack(0, 0, 1, 2), pack(1, 3, 4), pack(2, 5, 6), pack(3, 7)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(save_model(make_model("qwen3"), tmp_path_factory.mktemp("target")))


def write(
    folder: Path, target: Target, packs: list[Pack] = PACKS, rank: int = 0, file_bytes: int = 8000
) -> list[BlockLayout]:
    """Write packs; returns the layouts that were computed."""
    computed = []

    def compute(layout: BlockLayout) -> FeatureBatch:
        computed.append(layout)
        return target.features(layout)

    FeatureCacheWriter(folder, rank, len(LENGTHS), compute, file_bytes).write(packs)
    return computed


def layouts(
    packs: list[Pack], seed: int, block_size: int = 4, caps: int = 12, mode: Any = "same_position"
) -> list[BlockLayout]:
    return [BlockLayout.build(one, AnchorCaps(caps), seed, block_size, mode) for one in packs]


def replay(source: Any, wanted: list[BlockLayout]) -> list[list[torch.Tensor]]:
    with source:
        for layout in wanted:
            source.expect(layout)
        return [[part.clone() for part in tensors(source.receive(layout))] for layout in wanted]


def cached(folder: Path, identity: dict[str, Any] = IDENTITY) -> CachedFeatures:
    return CachedFeatures(folder, identity, len(LENGTHS), SHAPES, CPU)


@pytest.mark.parametrize("mode", ["same_position", "next_token"])
def test_packs_as_they_were_written_have_the_same_bits(tmp_path: Path, target: Target, mode: str) -> None:
    write(tmp_path, target)
    complete_cache(tmp_path, IDENTITY, len(LENGTHS))
    assert len(list(tmp_path.glob("features-*.safetensors"))) > 1
    for seed in range(3):
        wanted = layouts([*PACKS, Pack(4, 0, ())], seed, mode=mode)
        expected = replay(LocalFeatures(target.features, SHAPES, CPU), wanted)
        for got_parts, expected_parts in zip(replay(cached(tmp_path), wanted), expected, strict=True):
            for got, part in zip(got_parts, expected_parts, strict=True):
                assert torch.equal(got, part)


def test_other_packs_anchors_and_further_uses(tmp_path: Path, target: Target) -> None:
    write(tmp_path, target)
    complete_cache(tmp_path, IDENTITY, len(LENGTHS))
    redrawn = [pack(0, 13, 2, 6, epoch=1), pack(1, 8, 3, 0, epoch=1), pack(2, 15, 4, epoch=1)]
    wanted = layouts(redrawn, seed=5, block_size=6)
    expected = replay(LocalFeatures(target.features, SHAPES, CPU), wanted)
    for got_parts, expected_parts in zip(replay(cached(tmp_path), wanted), expected, strict=True):
        for got, part in zip(got_parts, expected_parts, strict=True):
            torch.testing.assert_close(got, part, rtol=1e-5, atol=1e-5)


def test_documents_that_the_target_could_not_compute_stay_marked(tmp_path: Path) -> None:
    def compute(layout: BlockLayout) -> FeatureBatch:
        return FeatureBatch(
            layout.pack.pack_id,
            torch.zeros(layout.pack.num_tokens, 48),
            torch.zeros(layout.num_teacher_rows, 16),
            torch.zeros(layout.num_blocks, 16),
            torch.tensor([one.document_id != 1 for one in layout.pack.documents]),
        )

    FeatureCacheWriter(tmp_path, 0, len(LENGTHS), compute).write(PACKS)
    complete_cache(tmp_path, IDENTITY, len(LENGTHS))
    (layout,) = layouts(PACKS[:1], 0)
    with cached(tmp_path) as source:
        source.expect(layout)
        finite = source.receive(layout).finite_documents
    assert finite is not None
    assert finite.tolist() == [True, False, True]


def test_writing_goes_on_where_it_was_ended(tmp_path: Path, target: Target) -> None:
    class EndedError(Exception):
        pass

    def compute(layout: BlockLayout) -> FeatureBatch:
        if layout.pack.pack_id == 2:
            raise EndedError
        return target.features(layout)

    with pytest.raises(EndedError):
        FeatureCacheWriter(tmp_path, 0, len(LENGTHS), compute, file_bytes=1).write(PACKS)
    (tmp_path / "features-00000-00002.partial").write_bytes(b"half a file")
    with pytest.raises(ValueError, match="document 5 is missing: give the same command again"):
        complete_cache(tmp_path, IDENTITY, len(LENGTHS))
    with pytest.raises(ValueError, match="no complete cache"):
        cached(tmp_path)
    computed = write(tmp_path, target, file_bytes=1)
    assert [layout.pack.pack_id for layout in computed] == [2, 3]
    complete_cache(tmp_path, IDENTITY, len(LENGTHS))
    wanted = layouts(PACKS, 1)
    expected = replay(LocalFeatures(target.features, SHAPES, CPU), wanted)
    for got_parts, expected_parts in zip(replay(cached(tmp_path), wanted), expected, strict=True):
        assert all(torch.equal(got, part) for got, part in zip(got_parts, expected_parts, strict=True))


def test_ranks_write_files_of_their_own(tmp_path: Path, target: Target) -> None:
    for rank in range(2):
        write(tmp_path, target, PACKS[rank::2], rank)
    complete_cache(tmp_path, IDENTITY, len(LENGTHS))
    wanted = layouts(PACKS, 1)
    expected = replay(LocalFeatures(target.features, SHAPES, CPU), wanted)
    for got_parts, expected_parts in zip(replay(cached(tmp_path), wanted), expected, strict=True):
        assert all(torch.equal(got, part) for got, part in zip(got_parts, expected_parts, strict=True))


def test_features_of_something_else_are_refused(tmp_path: Path, target: Target) -> None:
    write(tmp_path, target)
    complete_cache(tmp_path, IDENTITY, len(LENGTHS))
    with pytest.raises(ValueError, match=r"with layers \[0, 1\], got \[0, 2, 3\]; write them anew"):
        cached(tmp_path, {**IDENTITY, "layers": [0, 1]})
    with pytest.raises(ValueError, match="with data 'other', got None"):
        cached(tmp_path, {**IDENTITY, "data": "other"})


def test_changed_documents_are_an_error_and_order_is_kept(tmp_path: Path, target: Target) -> None:
    write(tmp_path, target)
    complete_cache(tmp_path, IDENTITY, len(LENGTHS))
    changed = Document(0, torch.ones(21, dtype=torch.int64), torch.ones(21, dtype=torch.bool))
    (layout,) = layouts([Pack(0, 0, (changed,))], 0)
    with cached(tmp_path) as source:
        source.expect(layout)
        with pytest.raises(StreamError, match="document 0: expected features of 21 tokens"):
            source.receive(layout)
    first, second = layouts(PACKS[:2], 0)
    with cached(tmp_path) as source:
        source.expect(first)
        with pytest.raises(StreamError, match="call expect"):
            source.receive(second)


def test_the_size_is_an_upper_bound_close_to_what_is_written(tmp_path: Path, target: Target) -> None:
    write(tmp_path, target)
    documents = [document(number) for number in range(8)]
    supervised = sum(int(one.loss_mask_S.sum()) for one in documents)
    told = cache_bytes(sum(LENGTHS), supervised, 67, 48, 16, torch.float32)
    written = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    headers = 2000 * len(list(tmp_path.glob("*.safetensors")))
    assert 0.75 * told < written < told + headers


def test_a_full_disk_is_told_before(tmp_path: Path) -> None:
    check_disk(tmp_path, 1000)
    with pytest.raises(ValueError, match=r"expected 1024000\.0 GiB of free disk"):
        check_disk(tmp_path, 1_024_000 << 30)
