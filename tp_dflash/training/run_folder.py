"""What a run leaves behind so that a person can repeat it: command, configuration, versions, commit.

In: a configuration and argv. Out: ``runs/NAME/`` with ``run.json``; figures, checkpoints and exports join it later.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from typing import Any

from tp_dflash.config.run_files import RunFiles
from tp_dflash.parallel.versions import versions


class RunFolder(RunFiles):
    """A run's folder that this process writes into."""

    def describe(self, argv: Sequence[str], settings: dict[str, Any], world: str) -> None:
        """Write ``run.json``: argv, the whole configuration, the world, versions and commit.

        What ranks of an earlier start last said goes: this one may have fewer, and nobody would tell them apart.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.ranks, ignore_errors=True)
        content = {"argv": list(argv), "world": world, "versions": versions(), "config": settings}
        self.settings.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
