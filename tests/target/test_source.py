"""A target that is not there: a mistyped folder is said to be missing at once, without a question to the hub."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tp_dflash.config.target import TargetConfig
from tp_dflash.target import read_target_facts


@pytest.mark.parametrize(
    "path", ["models/smollm2-135", "./nowhere", "/nowhere/model", "~/model", "a/b/c", "models/", ".."]
)
def test_a_missing_folder_is_named_at_once(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    started = time.monotonic()
    if path in ("models/", ".."):  # a folder, but no model
        with pytest.raises(ValueError, match="expected a model that transformers can describe"):
            read_target_facts(TargetConfig(path=path))
    else:
        with pytest.raises(ValueError, match=f"got '{path}': no such folder"):
            read_target_facts(TargetConfig(path=path))
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("path", ["model", "owner/model"])
def test_without_access_to_the_hub_only_the_cache_is_asked(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=f"HF_HUB_OFFLINE.* got '{path}': no such folder, and not in the cache"):
        read_target_facts(TargetConfig(path=path))
