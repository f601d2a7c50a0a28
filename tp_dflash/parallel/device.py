"""The device of a rank: its GPU where there are any, else the CPU; the same code runs on both."""

from __future__ import annotations

import torch


def pick_device(gpu: int) -> torch.device:
    """``cuda:gpu`` if this machine has GPUs, else the CPU; ValueError if it has some, but not this one."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if gpu >= torch.cuda.device_count():
        raise ValueError(
            f"placement: expected GPU {gpu} on this machine, got {torch.cuda.device_count()} visible GPUs; change the "
            "placement or CUDA_VISIBLE_DEVICES"
        )
    device = torch.device("cuda", gpu)
    torch.cuda.set_device(device)
    return device


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory held at once so far: the allocator's on a GPU, the process's resident set on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
