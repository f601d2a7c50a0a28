"""Where a target comes from: its folder and its Hugging Face configuration, before any weight is read.

In: the target section of a run. Out: a local folder, the model's configuration, and the part of it that describes the
text decoder. Weights are never touched here; code from the folder runs only when the run asks for it by name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from tp_dflash.config.target import TargetConfig

# Names under which wrappers keep the configuration of their text decoder, outermost first.
_NESTED_NAMES = ("thinker_config", "text_config", "llm_config", "language_config", "decoder")
_SIZES = ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim")


def target_folder(config: TargetConfig) -> Path:
    """The local folder of the target; a name on the hub is downloaded (weights and JSON files only) or found in the cache.

    ValueError if it is neither a folder nor a reachable name.
    """
    if config.path is None:
        raise ValueError("expected a target with files, got one made of target.shape alone; set target.path")
    folder = Path(config.path)
    if folder.is_dir():
        return folder
    _refuse_missing_folder(config.path)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(config.path, allow_patterns=["*.safetensors", "*.json", "*.jinja", "*.model"]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ValueError(
            f"target.path: expected a folder or a reachable hub name, got {config.path!r} ({_first_line(error)}); "
            "correct target.path or download the model first"
        ) from None


def target_file(config: TargetConfig, name: str) -> Path | None:
    """A small file that lies beside the target's weights, in its folder or on the hub; None if there is none of that name."""
    if config.path is None:
        return None
    if Path(config.path).is_dir():
        file = Path(config.path) / name
        return file if file.is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(hf_hub_download(config.path, name))
    except EntryNotFoundError:
        return None


def load_model_config(config: TargetConfig) -> PreTrainedConfig:
    """The model's whole configuration (for a multimodal target: of the wrapper), with target.shape laid over it."""
    if config.shape:
        return _made_up(config)
    _refuse_missing_folder(str(config.path))
    try:
        model_config = AutoConfig.from_pretrained(str(config.path), trust_remote_code=config.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"target.path: expected a model that transformers can describe, got {config.path!r} ({_first_line(error)}); "
            "correct target.path, or set target.trust_remote_code for a model with code of its own"
        ) from None
    file = target_file(config, "config.json")
    if file is not None:
        _check_sizes_kept(json.loads(file.read_text(encoding="utf-8")), model_config, str(config.path))
    return model_config


def _refuse_missing_folder(path: str) -> None:
    """A mistyped folder, asked for on the hub, is answered late and by another name; a hub name is NAME or OWNER/NAME."""
    folder = Path(path)
    if folder.exists():
        return
    is_path = folder.is_absolute() or path.startswith((".", "~")) or path.endswith("/") or path.count("/") > 1
    if is_path or (path.count("/") == 1 and folder.parent.is_dir()):
        raise ValueError(
            f"target.path: expected a folder or a hub name, got {path!r}: no such folder; correct target.path (a hub name whose "
            "first part is also a folder here: give the folder that it was downloaded to)"
        )
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if HF_HUB_OFFLINE and not _is_cached(path):
        raise ValueError(
            f"target.path: expected a folder, or a hub name in the cache, for access to the hub is off (HF_HUB_OFFLINE), got "
            f"{path!r}: no such folder, and not in the cache; correct target.path or download the model first"
        )


def _is_cached(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False


def text_config(model_config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration of the text decoder: nested ones are followed, a nested ``null`` means that it is not nested."""
    for name in _NESTED_NAMES:
        if name in vars(model_config) and isinstance(vars(model_config)[name], PreTrainedConfig):
            return text_config(vars(model_config)[name])
    return model_config


def _made_up(config: TargetConfig) -> PreTrainedConfig:
    fields: dict[str, Any] = {}
    if config.path is not None:
        fields = json.loads((target_folder(config) / "config.json").read_text(encoding="utf-8"))
    fields = _laid_over(fields, config.shape)
    model_type = fields.pop("model_type")
    if model_type not in CONFIG_MAPPING:
        raise ValueError(
            f"target.shape: expected a model_type that transformers knows, got {model_type!r}; correct model_type"
        )
    made = CONFIG_MAPPING[model_type](**fields)
    _check_sizes_kept(fields, made, "target.shape")
    return made


def _laid_over(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in changes.items():
        nested = isinstance(value, dict) and isinstance(base.get(name), dict)
        merged[name] = _laid_over(base[name], value) if nested else value
    return merged


def _check_sizes_kept(written: dict[str, Any], model_config: PreTrainedConfig, source: str) -> None:
    """Configuration classes fill in defaults for what they do not find; a size that was written must be the one used."""
    text = text_config(model_config)
    while nested := next((written[name] for name in _NESTED_NAMES if isinstance(written.get(name), dict)), None):
        written = nested
    for name in _SIZES:
        used = getattr(text, name) if hasattr(text, name) else None
        if written.get(name) is not None and used != written[name]:
            raise ValueError(
                f"{source}: expected {name} = {written[name]}, as written, but {type(text).__name__} uses {used}; write the "
                "sizes where this model type reads them (in its text_config, if it has one)"
            )


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
