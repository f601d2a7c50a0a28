"""config.json against how the drafter was trained and against the target's own configuration.

With a training record "as trained" is what the record says. Without one (a folder of others) it is the usual choice: the
target's sizes, plain rotary embedding over the whole head, causal sliding layers.
"""

from __future__ import annotations

from collections.abc import Iterator

from tp_dflash.formats.contract.attention_checks import check_rotary, check_windows
from tp_dflash.formats.contract.finding import Finding, compared
from tp_dflash.formats.contract.folder_view import FolderView
from tp_dflash.target import TargetFacts


def check_fields(view: FolderView, target: TargetFacts) -> Iterator[Finding]:
    """Findings on every field that decides what a server computes."""
    yield from check_kinds(view)
    yield check_network(view)
    yield check_label_mode(view)
    yield check_block_size(view)
    if view.layout == "speculators":
        yield from check_proposals(view)
    yield from check_layer_ids(view, target)
    yield from check_rotary(view, target)
    yield from check_windows(view)
    yield from check_mask_token(view, target)
    yield from check_sizes(view, target)


def check_kinds(view: FolderView) -> Iterator[Finding]:
    """Fields of the wrong kind; all that follows takes them as absent."""
    for place, what in view.misfits.items():
        yield Finding(f"field {place}", what, "correct it in config.json")


def check_network(view: FolderView) -> Finding:
    """What makes loaders build this network and no other."""
    expected: dict[str, object] = {"model_type": "qwen3", "hidden_act": "silu", "attention_bias": False}
    stated = {name: view.network.get(name, value) for name, value in expected.items()}
    wrong = {name: value for name, value in stated.items() if value != expected[name]}
    # Loaders of the speculators layout set the architecture themselves.
    if view.layout == "zlab":
        expected["architectures"] = ["DFlashDraftModel"]
        if view.config.get("architectures") != ["DFlashDraftModel"]:
            wrong["architectures"] = view.config.get("architectures")
        code = (
            view.config.get("auto_map", {}).get("AutoModel") if isinstance(view.config.get("auto_map"), dict) else None
        )
        if isinstance(code, str) and not (view.folder / f"{code.partition('.')[0]}.py").is_file() and view.headers:
            wrong["auto_map"], expected["auto_map"] = (
                f"{code} without its file",
                "the modelling file beside config.json",
            )
    figure = "a Qwen3 DFlash drafter" if not wrong else ", ".join(f"{name} {value}" for name, value in wrong.items())
    remedy = ", ".join(f"{name} {expected[name]}" for name in wrong)
    return Finding("network", figure, f"write {remedy}" if wrong else None)


def check_proposals(view: FolderView) -> Iterator[Finding]:
    """Speculators layout: how many tokens a server drafts by default, and for which target."""
    settings = view.config.get("speculators_config", {})
    methods = settings.get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], dict) else {}
    size = view.config.get("block_size", 0)
    expected = size - (1 if view.label_mode == "same_position" else 0)
    got = first.get("speculative_tokens")
    yield compared("drafted tokens", got, expected, f"in blocks of {size}", f"write speculative_tokens {expected}")
    verifier = settings.get("verifier")
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    yield Finding("named target", f"{name}", None if isinstance(name, str) and name else "write verifier.name_or_path")
    head = view.headers.get("lm_head.weight")
    if head is not None:
        stated = view.config.get("draft_vocab_size")
        yield compared(
            "draft_vocab_size", stated, head[1][0], "rows of lm_head", f"write draft_vocab_size {head[1][0]}"
        )


def check_label_mode(view: FolderView) -> Finding:
    trained = "same_position" if view.record is None else view.record.shape.label_mode
    finding = compared("label mode", view.label_mode, trained, view.measure, f"write {trained} into config.json")
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
    whose = "stated" if view.record is None else "as trained"
    return compared("block size", size, trained, whose, f"write block_size {trained}")


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
            "max_position_embeddings": shape.max_positions,
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
