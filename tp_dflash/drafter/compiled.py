"""Functions that are compiled where that pays: on GPUs, once; on CPUs they run as they are written."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch


def compiled_on_gpu(function: Callable[..., Any], device: torch.device, *, dynamic: bool) -> Callable[..., Any]:
    """``function`` itself on a CPU. ``dynamic``: one kernel for all sizes; otherwise one for each."""
    return _compiled(function, dynamic) if device.type == "cuda" else function


@cache
def _compiled(function: Callable[..., Any], dynamic: bool) -> Callable[..., Any]:
    return torch.compile(function, dynamic=dynamic)
