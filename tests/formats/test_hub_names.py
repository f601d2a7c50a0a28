"""A target that is named on the hub is the same target as its folder: facts, stop tokens, and what it is recognised by."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.models import save_target
from tp_dflash.config.target import TargetConfig
from tp_dflash.formats import TargetIdentity
from tp_dflash.target import read_target_facts

NAME, COMMIT = "somebody/tiny", "0" * 40
FILES = {
    "generation_config.json": json.dumps({"eos_token_id": [3, 7], "pad_token_id": 5}),
    "tokenizer.json": json.dumps({"version": "1.0"}),
    "tokenizer_config.json": json.dumps({"chat_template": "{{ messages }}"}),
}


def known_of(path: str) -> dict[str, Any]:
    """What is recorded of a target, without its name."""
    config = TargetConfig(path=path)
    facts = read_target_facts(config)
    identity = TargetIdentity.of(config, facts)
    return json.loads(json.dumps([asdict(facts) | {"name": ""}, asdict(identity) | {"name_or_path": ""}], default=str))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "tiny"
    save_target(folder)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("template_file", [False, True], ids=["template in the settings", "template in a file"])
def test_a_name_in_the_cache_is_as_its_folder(folder: Path, tmp_path: Path, template_file: bool) -> None:
    if template_file:
        folder = shutil.copytree(folder, tmp_path / "with-file")
        (folder / "chat_template.jinja").write_text("{{ messages[0] }}")
    cached = tmp_path / "cache" / f"models--{NAME.replace('/', '--')}"
    shutil.copytree(folder, cached / "snapshots" / COMMIT)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(COMMIT)
    # Where the cache is and whether the hub may be asked is read once, at import.
    told = subprocess.run(
        [sys.executable, "-c", f"import json; from {__name__} import known_of; print(json.dumps(known_of({NAME!r})))"],
        env={**os.environ, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    expected = known_of(str(folder))
    assert None not in (expected[1]["tokenizer"], expected[1]["chat_template"])
    assert json.loads(told.stdout.splitlines()[-1]) == expected
