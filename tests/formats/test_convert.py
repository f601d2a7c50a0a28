"""Published drafters from layout to layout and from dtype to dtype."""

import pytest
import torch

from tests.formats.folders import trained, write_target
from tp_dflash.formats import (
    TargetMatrices,
    convert_published,
    read_speculators,
    read_zlab,
    write_speculators,
    write_zlab,
)
from tp_dflash.head import DraftVocabulary
from tp_dflash.target import read_target_facts


@pytest.fixture
def target(tmp_path):
    return write_target(tmp_path / "target")


def _bytes(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("with_record", [True, False])
def test_there_and_back_is_the_identity(tmp_path, target, with_record):
    _, published = trained(target, torch.bfloat16, num_layers=3, sliding_window=5)
    write_zlab(tmp_path / "first", published)
    if not with_record:
        (tmp_path / "first" / "tp_dflash.json").unlink()
        write_zlab(tmp_path / "first", read_zlab(tmp_path / "first"))
    convert_published(tmp_path / "first", tmp_path / "second", "speculators", target=target)
    convert_published(tmp_path / "second", tmp_path / "third", "speculators")
    convert_published(tmp_path / "third", tmp_path / "fourth", "zlab")
    assert _bytes(tmp_path / "second") == _bytes(tmp_path / "third")
    assert _bytes(tmp_path / "first") == _bytes(tmp_path / "fourth")


def test_another_dtype_converts_the_carried_matrices_too(tmp_path, target):
    _, published = trained(target)
    facts = read_target_facts(target)
    vocabulary = DraftVocabulary(torch.arange(0, 61, 2), 61)
    write_speculators(tmp_path / "first", published, TargetMatrices.read(target, facts, torch.float32, vocabulary))
    for options in ({}, {"target": target}):
        convert_published(tmp_path / "first", tmp_path / "second", "speculators", dtype="bfloat16", **options)
        drafter, matrices = read_speculators(tmp_path / "second")
        assert drafter.dtype == matrices.head_WD.dtype == matrices.embeddings_VD.dtype == torch.bfloat16
        assert torch.equal(matrices.vocabulary.token_ids_W, vocabulary.token_ids_W)
        assert drafter.record.digests != published.record.digests


def test_the_speculators_layout_needs_the_target(tmp_path, target):
    _, published = trained(target)
    write_zlab(tmp_path / "first", published)
    with pytest.raises(ValueError, match="--target"):
        convert_published(tmp_path / "first", tmp_path / "second", "speculators")
    assert not (tmp_path / "second").exists()


def test_a_target_of_another_size_is_refused(tmp_path, target):
    _, published = trained(target)
    write_zlab(tmp_path / "first", published)
    other = write_target(tmp_path / "other", vocab_size=70)
    with pytest.raises(ValueError, match="embedding table of"):
        convert_published(tmp_path / "first", tmp_path / "second", "speculators", target=other)
