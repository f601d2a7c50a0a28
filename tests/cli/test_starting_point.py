"""A run that starts from a published drafter: its weights are the start, and a drafter of another shape is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.job import Job, complete, write_config
from tests.cli.test_resume import difference, exported

TWO: dict[str, object] = {"target": "0", "drafter": "1"}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of a run that moved its weights."""
    folder = tmp_path_factory.mktemp("starting")
    complete(write_config(folder, "first", TWO, optimizer={"learning_rate": 3e-2}), 2)
    return folder / "first" / "export"


def test_a_run_goes_on_from_a_published_drafters_weights(first: Path) -> None:
    """With a rate that moves nothing the second run's result is its start; without init_from it is another drafter."""
    folder = first.parents[1]
    still = {"optimizer": {"learning_rate": 1e-12}, "checkpoint": {"export_dtype": "float32"}}
    place: dict[str, object] = {"drafter": "0,1", "tensor_parallel": 2}
    complete(write_config(folder, "on", place, drafter={"init_from": str(first)}, **still), 2)
    complete(write_config(folder, "anew", place, **still), 2)
    weights = exported(first.parent)
    assert difference(weights, exported(folder / "on")) < 1e-9
    assert difference(weights, exported(folder / "anew")) > 1e-2


def test_a_checkpoint_counts_more_than_the_starting_drafter(first: Path) -> None:
    """A second start of the same command goes on where the first one was, not from init_from again."""
    folder = first.parents[1]
    config = write_config(folder, "twice", TWO, drafter={"init_from": str(first)}, training={"epochs": 4})
    whole = write_config(folder, "once", TWO, drafter={"init_from": str(first)}, training={"epochs": 4})
    complete(whole, 2)
    for _ in range(2):
        complete(config, 2, ["--max-time", "0.01"])
    job = complete(config, 2)
    assert "continued from" in job.text()
    assert difference(exported(folder / "once"), exported(folder / "twice")) == 0


def test_a_drafter_of_another_shape_is_refused_on_every_rank(first: Path) -> None:
    folder = first.parents[1]
    settings = {"init_from": str(first), "num_layers": 3}
    job = Job(write_config(folder, "other-shape", TWO, drafter=settings), 2)
    assert job.wait(60) == [1, 1], job.text()
    for rank in (0, 1):
        assert "layer" in job.output(rank)
        assert str(first) in job.output(rank)
