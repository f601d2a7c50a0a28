"""Tensors in and out of a folder's safetensors files: one file, or shards with an index above a size."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

SHARD_BYTES = 5 * 10**9
_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_HEADER_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "I64": torch.int64}


def write_weights(folder: Path, tensors: Mapping[str, Tensor], shard_bytes: int = SHARD_BYTES) -> None:
    """Write ``model.safetensors``, or shards of at most ``shard_bytes`` (a larger tensor has its own) and their index."""
    shards = _shards(tensors, shard_bytes)
    if len(shards) == 1:
        _save(folder / _FILE, tensors, shards[0])
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _save(folder / file, tensors, names)
        weight_map |= dict.fromkeys(names, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder, on the CPU; ValueError if a file is missing, cut short or not a safetensors file."""
    return {name: tensor for file in _files(folder) for name, tensor in _load(file)}


def read_headers(folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """(dtype name, shape) of every tensor without reading any."""
    headers = {}
    for path in _files(folder):
        with _open(path) as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                part = file.get_slice(name)
                dtype = _HEADER_DTYPES.get(part.get_dtype(), part.get_dtype())
                headers[name] = (str(dtype).removeprefix("torch."), tuple(part.get_shape()))
    return headers


def _shards(tensors: Mapping[str, Tensor], shard_bytes: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    filled = 0
    for name, tensor in tensors.items():
        if shards[-1] and filled + tensor.nbytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += tensor.nbytes
    return shards


def _save(path: Path, tensors: Mapping[str, Tensor], names: list[str]) -> None:
    save_file({name: tensors[name].detach().contiguous() for name in names}, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors makes it readable for its owner only


def _files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        files = [folder / name for name in names]
    else:
        files = [folder / _FILE]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ValueError(
            f"{folder}: expected the weights in {[f.name for f in files]}, got none of {missing}; copy them too"
        )
    return files


def _load(path: Path) -> Iterator[tuple[str, Tensor]]:
    with _open(path) as file:
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            yield name, file.get_tensor(name)


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(
            f"{path}: expected a complete safetensors file, got: {error}; copy or export it again"
        ) from None
