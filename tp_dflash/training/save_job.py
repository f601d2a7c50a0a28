"""One checkpoint on its way to disk: host copies of the tensors, written and sealed by a thread while training goes on.

In: sharded tensors of the training state, a gloo group of the drafter ranks that nothing else uses. Out: a sealed folder, or
the same SaveError on all ranks and no folder that counts. The tensors may change as soon as the job exists.
"""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from tp_dflash.parallel.decision import DecisionError, decided_by_first
from tp_dflash.training.checkpoint_folder import clear_partial, folder_name, partial_path, remove_old, seal


class SaveError(RuntimeError):
    """A checkpoint could not be written; older ones are as they were."""


@dataclass(frozen=True)
class SaveRequest:
    """root: folder of all checkpoints. state: what is not a tensor. keep: steps that are never removed."""

    root: Path
    step: int
    state: dict[str, Any]
    keep_last: int
    keep: frozenset[int]


class SaveJob:
    """Starts at once; ``wait`` returns when the checkpoint counts. Every rank of ``savers`` makes the same jobs in order."""

    def __init__(self, request: SaveRequest, tensors: dict[str, Tensor], savers: ProcessGroup) -> None:
        self.request = request
        self._savers = savers
        self._staged = {name: _on_host(tensor) for name, tensor in tensors.items()}
        self._error: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"save {request.step}")
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        """SaveError, on every rank alike, if any rank could not write."""
        self._thread.join()
        if self._error is not None:
            raise SaveError(self._error)

    def _run(self) -> None:
        request, where = self.request, self.request.root / folder_name(self.request.step)
        try:
            decided_by_first(lambda: clear_partial(request.root, request.step), self._savers)
            writer = HuggingFaceStorageWriter(path=str(partial_path(request.root, request.step)), save_distributed=True)
            dcp.save(self._staged, storage_writer=writer, process_group=self._savers)
            decided_by_first(self._seal, self._savers)
        except CheckpointException as error:
            # It carries the errors of all ranks, and every rank gets it.
            reasons = {f"{type(found).__name__}: {found}" for found, _ in error.failures.values()}
            self._error = (
                f"{where} could not be saved: {'; '.join(sorted(reasons))}; older checkpoints are as they were"
            )
        except (DecisionError, RuntimeError, OSError) as error:
            self._error = f"{where} could not be saved: {error}; older checkpoints are as they were"
        finally:
            self._staged = {}
            if self._error is not None:
                shutil.rmtree(partial_path(request.root, request.step), ignore_errors=True)

    def _seal(self) -> None:
        request = self.request
        seal(request.root, request.step, request.state)
        remove_old(request.root, request.keep_last, request.keep, request.step)


def _on_host(tensor: Tensor) -> Tensor:
    """A copy of this rank's part on the host, described as a part of the same whole tensor."""
    if not isinstance(tensor, DTensor):
        return tensor.detach().to("cpu", copy=True)
    whole = tensor.device_mesh
    # Only says where the part lies: nothing is ever sent through this mesh.
    mesh = DeviceMesh.from_group(whole.get_all_groups(), "cpu", mesh=whole.mesh, mesh_dim_names=whole.mesh_dim_names)
    part = tensor.to_local().detach().to("cpu", copy=True)
    return DTensor.from_local(
        part, mesh, tensor.placements, run_check=False, shape=torch.Size(tensor.shape), stride=tensor.stride()
    )
