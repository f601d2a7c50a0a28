"""Tensors against config.json and against what training left: names, shapes, dtypes, contents."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tp_dflash.drafter import parameter_shapes
from tp_dflash.formats.contract.finding import Finding
from tp_dflash.formats.contract.folder_view import FolderView
from tp_dflash.formats.training_record import TrainingRecord, tensor_digests

_SHOWN = 3


def check_weights(view: FolderView, body: dict[str, Tensor]) -> Iterator[Finding]:
    """Findings on the drafter's own tensors."""
    yield check_names(view)
    yield check_dtype(view)
    yield check_finite(body)
    yield check_norms(body)
    if view.record is not None:
        yield check_contents(view.record, body)


def check_names(view: FolderView) -> Finding:
    """Every tensor that config.json calls for, in its shape, and nothing else."""
    try:
        expected, got = parameter_shapes(view.shape()), view.body
    except ValueError as error:
        return Finding("tensors", str(error), "correct the sizes in config.json")
    missing, unexpected = sorted(expected.keys() - got.keys()), sorted(got.keys() - expected.keys())
    reshaped = [
        f"{n} {got[n]} for {expected[n]}" for n in sorted(expected.keys() & got.keys()) if got[n] != expected[n]
    ]
    faults = [
        f"{what}: {_some(names)}"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("shape", reshaped))
        if names
    ]
    remedy = None
    if faults:
        renamed = len(missing) == len(unexpected) and not reshaped
        remedy = (
            f"rename {_some(unexpected)} to {_some(missing)}"
            if renamed
            else "export again, or correct the sizes in config.json"
        )
    return Finding("tensors", "; ".join([f"{len(got)} of {len(expected)}", *faults]), remedy)


def check_dtype(view: FolderView) -> Finding:
    stored = sorted({dtype for name, (dtype, _) in view.headers.items() if name in view.body})
    stated = sorted(
        {
            str(fields[name])
            for fields in (view.config, view.network)
            for name in ("dtype", "torch_dtype")
            if fields.get(name)
        }
    )
    ok = len(stored) == 1 and stated == stored
    return Finding(
        "dtype",
        f"{', '.join(stored)} in the file, {', '.join(stated) or 'none'} in config.json",
        None if ok else (f"write dtype {stored[0]}" if len(stored) == 1 else "convert all tensors to one dtype"),
    )


def check_finite(body: dict[str, Tensor]) -> Finding:
    wrong = [name for name, tensor in body.items() if not torch.isfinite(tensor).all()]
    return Finding(
        "finite numbers",
        f"{len(body) - len(wrong)} of {len(body)} tensors" + (f", not {_some(wrong)}" if wrong else ""),
        "export an earlier checkpoint" if wrong else None,
    )


def check_norms(body: dict[str, Tensor]) -> Finding:
    """A norm weight that is 1 throughout while the others have moved was left out or never loaded."""
    norms = {name: bool((tensor == 1).all()) for name, tensor in body.items() if tensor.ndim == 1}
    idle = [name for name, flat in norms.items() if flat]
    suspicious = idle and len(idle) <= len(norms) // 2
    return Finding(
        "norm weights",
        f"{len(norms) - len(idle)} of {len(norms)} differ from 1" + (f", not {_some(idle)}" if suspicious else ""),
        "a norm was left out: export again from the checkpoint" if suspicious else None,
    )


def check_contents(record: TrainingRecord, body: dict[str, Tensor]) -> Finding:
    """Every tensor's digest as it was exported; where one differs, whose content it is if that is known."""
    got = tensor_digests(body)
    owner: dict[str, str] = {}
    for name, digest in record.digests.items():
        owner.setdefault(digest, name)
    changed = [name for name in sorted(got.keys() & record.digests.keys()) if got[name] != record.digests[name]]
    swapped = {name: owner[got[name]] for name in changed if got[name] in owner}
    if not changed:
        return Finding("tensor contents", f"{len(got)} equal the exported ones")
    told = [f"{name} holds {swapped[name]}" if name in swapped else name for name in changed]
    if len(changed) == len(got):
        return Finding(
            "tensor contents",
            "none equals the exported one",
            "export again; the file was converted or is of another drafter",
        )
    return Finding(
        "tensor contents",
        f"{len(got) - len(changed)} of {len(got)} equal the exported ones, not {_some(told)}",
        "swap them back or export again" if swapped else "export again",
    )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
