"""config.json against how the drafter was trained and against the target's own configuration.

With a training record "as trained" is what the record says. Without one (a folder of others) it is the usual choice: the
target's sizes, plain rotary embedding over the whole head, causal sliding layers.
"""

from __future__ import annotations

from collections.abc import Iterator

from tp_dflash.formats.contract.finding import Finding, compared
from tp_dflash.formats.contract.folder_view import FolderView
from tp_dflash.formats.fields import rotary_kind, rotary_setting
from tp_dflash.target import TargetFacts


def check_fields(view: FolderView, target: TargetFacts) -> Iterator[Finding]:
    """Findings on every field that decides what a server computes."""
    yield check_label_mode(view)
    yield check_block_size(view)
    yield from check_layer_ids(view, target)
    yield from check_rotary(view, target)
    yield from check_windows(view)
    yield from check_mask_token(view, target)
    yield from check_sizes(view, target)


def check_label_mode(view: FolderView) -> Finding:
    trained = "same_position" if view.record is None else view.record.shape.label_mode
    finding = compared("label mode", view.label_mode, trained, "as trained", f"write {trained} into config.json")
    if finding.ok and trained == "next_token":
        return Finding(
            "label mode", "next_token: servers decode same_position", "train with drafter.label_mode = same_position"
        )
    return finding


def check_block_size(view: FolderView) -> Finding:
    places = (view.config.get("block_size"), view.blocks.get("block_size"))
    stated = sorted({int(size) for size in places if size is not None})
    if len(stated) != 1:
        return Finding("block size", f"{stated} stated", "write the trained block size, the same in both places")
    size = stated[0]
    trained = size if view.record is None else view.record.shape.block_size
    return compared("block size", size, trained, "as trained", f"write block_size {trained}")


def check_layer_ids(view: FolderView, target: TargetFacts) -> Iterator[Finding]:
    """Range, order, number, and the convention: ids count outputs of layers from 0."""
    ids, last = view.layer_ids, target.num_layers - 2
    in_range = bool(ids) and ids == sorted(set(ids)) and ids[0] >= 0 and ids[-1] <= last
    yield Finding(
        "layer ids",
        f"{ids}, of outputs 0..{last} of the target's {target.num_layers} layers",
        None if in_range else f"write the trained ids, distinct, ascending and within 0..{last}",
    )
    if view.record is not None:
        trained = list(view.record.shape.target_layer_ids)
        shift = {got - right for got, right in zip(ids, trained, strict=False)}
        by = (
            f" (all shifted by {shift.pop():+d})"
            if len(shift) == 1 and len(ids) == len(trained) and ids != trained
            else ""
        )
        yield compared(
            "layer id convention",
            ids,
            trained,
            f"as trained{by}",
            f"write {_as_stored(view, trained)} into config.json",
        )
    fc = view.body.get("fc.weight")
    if fc is not None:
        taps = fc[1] / target.hidden_size
        yield compared(
            "number of tapped layers",
            len(ids),
            int(taps) if taps == int(taps) else taps,
            "by the width of fc",
            "write as many layer ids as fc was trained with; or the drafter is for another target",
        )
    depth = view.config.get("num_target_layers")
    if depth is not None or view.layout == "zlab":
        yield compared("num_target_layers", depth, target.num_layers, "in the target", f"write {target.num_layers}")


def _as_stored(view: FolderView, ids: list[int]) -> str:
    if view.layout == "zlab":
        return f"target_layer_ids {ids}"
    return f"aux_hidden_state_layer_ids {[layer_id + 1 for layer_id in ids]}"


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
    yield Finding(
        "sliding window",
        f"{_kinds(types)}, window {window}; {_kinds(trained_types)}, window {trained_window} as trained",
        remedy
        if missing or (types, window) != (trained_types, trained_window) or len(types) != view.num_layers
        else None,
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


def check_mask_token(view: FolderView, target: TargetFacts) -> Iterator[Finding]:
    """An existing row of the target's embedding, no special token, and the one that was trained."""
    mask = view.blocks.get("mask_token_id")
    exists = isinstance(mask, int) and 0 <= mask < target.vocab_size
    yield Finding(
        "mask token exists",
        f"{mask} of {target.vocab_size} embedding rows",
        None if exists else f"write the trained mask_token_id, a row below {target.vocab_size}",
    )
    roles = {
        "padding": mask == target.pad_token_id,
        "end of sequence": mask in target.eos_token_ids,
        "begin of sequence": mask in target.bos_token_ids,
    }
    role = next((name for name, taken in roles.items() if taken), None)
    yield Finding(
        "mask token is free",
        f"{mask} is no special token of the target" if role is None else f"{mask} is the target's {role} token",
        None if role is None else "train with an unused row as drafter.mask_token_id, and export that id",
    )
    if view.record is not None:
        trained = view.record.shape.mask_token_id
        yield compared("mask token", mask, trained, "as trained", f"write mask_token_id {trained}")


def check_sizes(view: FolderView, target: TargetFacts) -> Iterator[Finding]:
    """Sizes as trained, and those that must be the target's."""
    if view.record is not None:
        shape = view.record.shape
        trained = {
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.intermediate_size,
            "num_attention_heads": shape.num_heads,
            "num_key_value_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "num_hidden_layers": shape.num_layers,
            "rms_norm_eps": shape.rms_norm_eps,
        }
        wrong = {
            name: (view.network.get(name), value) for name, value in trained.items() if view.network.get(name) != value
        }
        changes = ", ".join(f"{name} {value}" for name, (_, value) in wrong.items())
        yield Finding(
            "sizes",
            f"{len(trained)} as trained"
            if not wrong
            else "; ".join(f"{n} {g}, {t} as trained" for n, (g, t) in wrong.items()),
            None if not wrong else f"write {changes}",
        )
    for name, expected in (("hidden_size", target.hidden_size), ("vocab_size", target.vocab_size)):
        yield compared(
            name, view.network.get(name), expected, "in the target", "use the target that the drafter was trained for"
        )
