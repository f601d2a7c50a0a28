"""Where figures are shown beside the run's own files: TensorBoard and Weights & Biases.

In: named scalars of a step. Out: the same in each place that was asked for. No secret passes through here: Weights & Biases
finds its own key.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch.utils.tensorboard import SummaryWriter

from tp_dflash.config.logging import LoggingConfig
from tp_dflash.training.run_folder import RunFolder


class Board(Protocol):
    """Shows scalars by step."""

    def show(self, scalars: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    def __init__(self, folder: RunFolder) -> None:
        self._writer = SummaryWriter(str(folder.tensorboard))

    def show(self, scalars: dict[str, float], step: int) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """One run there for each run folder: a start that goes on from a checkpoint adds to it."""

    def __init__(self, folder: RunFolder, project: str) -> None:
        try:
            import wandb
        except ImportError:
            raise ValueError(
                "logging.wandb: expected the package wandb, got none; pip install tp_dflash[wandb] or unset logging.wandb"
            ) from None
        name = folder.path.resolve().name
        self._run: Any = wandb.init(project=project, name=name, id=name, resume="allow", dir=str(folder.path))

    def show(self, scalars: dict[str, float], step: int) -> None:
        self._run.log(scalars, step=step)

    def close(self) -> None:
        self._run.finish()


def open_boards(folder: RunFolder, config: LoggingConfig) -> list[Board]:
    """Those that the configuration asks for."""
    boards: list[Board] = []
    if config.tensorboard:
        boards.append(TensorBoard(folder))
    if config.wandb is not None:
        boards.append(WeightsAndBiases(folder, config.wandb))
    return boards
