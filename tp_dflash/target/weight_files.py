"""Single rows of a target's lm_head and embedding table, straight from its safetensors files.

In: a folder. Out: tensor names, shapes, and slices of rows; no tensor is ever read whole. A missing lm_head means the
embedding table only where the config says that the two are tied.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

_HEAD_SUFFIXES = ("lm_head.weight", "embed_out.weight")
_TABLE_SUFFIXES = (
    "embed_tokens.weight",
    "wte.weight",
    "embed_in.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
)
# Tables of other modalities and of multi-token-prediction layers end in the same words.
_FOREIGN_PARTS = frozenset({"mtp", "layers", "visual", "vision_tower", "audio_tower", "talker", "code_predictor"})


class WeightFiles:
    """The safetensors files of one folder; ValueError if there are none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file_of = _index(folder)

    def head_key(self, tied: bool) -> str:
        """Name of the tensor whose rows are the lm_head's; ValueError that names the missing key of an untied one."""
        found = self._candidates(_HEAD_SUFFIXES)
        if found:
            return self._only(found, "lm_head.weight")
        if tied:
            return self.table_key()
        raise ValueError(
            f"{self.folder}: expected lm_head.weight in the safetensors files (the config does not tie it to the "
            "embedding), got no such key; export the model again, or set tie_word_embeddings if it is tied"
        )

    def table_key(self) -> str:
        """Name of the embedding table's tensor."""
        found = self._candidates(_TABLE_SUFFIXES)
        if not found:
            raise ValueError(
                f"{self.folder}: expected a key that ends in embed_tokens.weight in the safetensors files, got none; export "
                "the model again"
            )
        return self._only(found, "embed_tokens.weight")

    def shape(self, key: str) -> tuple[int, ...]:
        with safe_open(self._file_of[key], framework="pt") as file:
            return tuple(file.get_slice(key).get_shape())

    def rows(self, key: str, start: int, stop: int) -> Tensor:
        """Rows start..stop-1 of a matrix, in the file's dtype; ValueError outside the matrix."""
        with safe_open(self._file_of[key], framework="pt") as file:
            part = file.get_slice(key)
            num_rows = part.get_shape()[0]
            if not 0 <= start <= stop <= num_rows:
                raise ValueError(
                    f"{self.folder}: expected rows within 0..{num_rows} of {key}, got {start}..{stop}; correct the range"
                )
            return _plain(part[start:stop], key, self.folder)

    def picked_rows(self, key: str, ids: Iterable[int]) -> Tensor:
        """The rows with the given numbers, in that order."""
        rows = [self.rows(key, int(row), int(row) + 1) for row in ids]
        return torch.cat(rows) if rows else self.rows(key, 0, 0)

    def check_shapes(self, vocab_size: int, hidden_size: int, tied: bool) -> None:
        """ValueError unless head and table have the (rows, width) that the config states."""
        for key in (self.head_key(tied), self.table_key()):
            if self.shape(key) != (vocab_size, hidden_size):
                raise ValueError(
                    f"{self.folder}: expected {key} of shape {(vocab_size, hidden_size)} (vocab_size, hidden_size of the "
                    f"config), got {self.shape(key)}; the config and the weights are not of one model"
                )

    def _candidates(self, suffixes: tuple[str, ...]) -> list[str]:
        return [
            key
            for key in self._file_of
            if any(key == suffix or key.endswith("." + suffix) for suffix in suffixes)
            and not _FOREIGN_PARTS & set(key.split("."))
        ]

    def _only(self, found: list[str], wanted: str) -> str:
        if len(found) > 1:
            raise ValueError(
                f"{self.folder}: expected one key for {wanted}, got {sorted(found)}; remove the foreign weights from the folder"
            )
        return found[0]


def _index(folder: Path) -> dict[str, Path]:
    """File of every key: from the index file if there is one, else from the headers of all safetensors files."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        missing = sorted({name for name in names.values() if not (folder / name).is_file()})
        if missing:
            raise ValueError(
                f"{folder}: expected the files that {index.name} lists, got none of {missing}; copy them too"
            )
        return {key: folder / name for key, name in names.items()}
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(
            f"{folder}: expected safetensors files, got none; save the model with save_pretrained, or set "
            "target.random_weights for a dry run"
        )
    file_of: dict[str, Path] = {}
    for path in files:
        with safe_open(path, framework="pt") as file:
            file_of |= dict.fromkeys(file.keys(), path)
    return file_of


def _plain(rows: Tensor, key: str, folder: Path) -> Tensor:
    if rows.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(
            f"{folder}: expected {key} in bfloat16, float16 or float32, got {rows.dtype}; quantised heads are not supported"
        )
    return rows
