"""Rotary embedding, windows and causality: how a server will turn heads and who sees whom, against training."""

from __future__ import annotations

from collections.abc import Iterator

from tp_dflash.formats.contract.finding import Finding
from tp_dflash.formats.contract.folder_view import FolderView
from tp_dflash.formats.fields import rotary_kind, rotary_setting
from tp_dflash.target import TargetFacts


def check_rotary(view: FolderView, target: TargetFacts) -> Iterator[Finding]:
    """One base in every place, as trained; the whole head turns; no scaling."""
    bases = view.rope_bases
    if view.record is not None:
        trained, whose = view.record.shape.rope_theta, "as trained"
    else:
        trained, whose = (target.rotary_base or 0.0), "in the target"
    wrong = {place: base for place, base in bases.items() if base != trained}
    stated = ", ".join(f"{place} {base:g}" for place, base in bases.items()) or "none stated"
    yield Finding(
        "rotary base",
        f"{stated}; {trained:g} {whose}",
        f"write {trained:g} as rope_theta and as rope_parameters.rope_theta" if wrong or not bases else None,
    )
    factor = rotary_setting(view.network, "partial_rotary_factor")
    head_dim = view.network.get("head_dim")
    turned = head_dim if factor is None or head_dim is None else int(float(factor) * head_dim)
    yield Finding(
        "rotary dimension",
        f"{turned} of {head_dim} numbers of a head turn, all of them in training",
        None if turned == head_dim else "remove partial_rotary_factor from config.json",
    )
    kind, sections = rotary_kind(view.network), rotary_setting(view.network, "mrope_section")
    yield Finding(
        "rotary kind",
        f"{kind}{', M-RoPE' if sections is not None else ''}, plain in training",
        None
        if kind == "default" and sections is None
        else "remove rope_scaling, mrope_section and any rope_type but default",
    )


def check_windows(view: FolderView) -> Iterator[Finding]:
    """Which layers slide, how far, and what each sees of its own block when served."""
    types, window = view.layer_types, view.network.get("sliding_window")
    slides = "sliding_attention" in types
    window = window if slides else None
    if view.record is None:
        trained_types, trained_window, trained_causal = types, window, view.stated_causality
    else:
        shape = view.record.shape
        trained_types, trained_window, trained_causal = (
            list(shape.layer_types),
            shape.sliding_window,
            shape.sliding_causal,
        )
    remedy = f"write layer_types {trained_types} and sliding_window {trained_window}"
    missing = slides and window is None
    # Hugging Face's Qwen3 config drops the window where this flag is off.
    off = slides and view.network.get("use_sliding_window") is False
    same = (types, window) == (trained_types, trained_window) and len(types) == view.num_layers
    yield Finding(
        "sliding window",
        f"{_kinds(types)}, window {window}{', switched off' if off else ''}; {_kinds(trained_types)}, window {trained_window} "
        f"{view.measure}",
        None if same and not missing and not off else f"{remedy}, use_sliding_window {str(slides).lower()}",
    )
    served = view.served_causality
    trained = [kind == "sliding_attention" and trained_causal for kind in trained_types]
    yield Finding(
        "causality inside the block",
        f"served as {_marks(served)}, trained as {_marks(trained)} (layer by layer)",
        None if served == trained else _causality_remedy(view, trained),
    )


def _kinds(types: list[str]) -> str:
    return "".join("s" if kind == "sliding_attention" else "f" for kind in types) or "no layers"


def _marks(causal: list[bool]) -> str:
    return " ".join("causal" if flag else "both-ways" for flag in causal)


def _causality_remedy(view: FolderView, trained: list[bool]) -> str:
    if view.layout == "zlab":
        by_kind = trained == [kind == "sliding_attention" for kind in view.layer_types]
        return "remove dflash_config.causal" if by_kind else "write dflash_config.causal = false"
    if len(set(trained)) > 1:
        return "export the z-lab layout: vLLM takes one causality for all layers of the speculators layout"
    return f"write sliding_window_non_causal = {str(not trained[0]).lower()}"
