"""Everything that the report shows, read from a run's folder; what is missing there is empty here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tp_dflash.config.run_files import RunFiles


@dataclass(frozen=True)
class RunRecord:
    """settings: run.json. steps: logged steps in order, each once (a step that was taken again counts as it came out last).

    evaluations: figures by step. ranks: heartbeats. events: lines of faults.jsonl. results: report.json of a finished run.
    """

    name: str
    settings: dict[str, Any]
    steps: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    ranks: list[dict[str, Any]]
    events: list[dict[str, Any]]
    results: dict[str, Any]

    @staticmethod
    def read(folder: Path) -> RunRecord:
        """ValueError if ``folder`` is not a run's."""
        files = RunFiles(folder)
        if not files.settings.is_file():
            raise ValueError(
                f"{folder}: expected a run's folder with {files.settings.name}, got none; give the training.run_folder"
            )
        lines = _json_lines(files.metrics)
        ranks = [_json_file(path) for path in sorted(files.ranks.glob("rank-*.json"))]
        return RunRecord(
            name=folder.name,
            settings=_json_file(files.settings),
            steps=_once(line for line in lines if "loss" in line),
            evaluations=_once(line for line in lines if any(str(key).startswith("evaluation/") for key in line)),
            ranks=sorted((rank for rank in ranks if "rank" in rank), key=lambda rank: int(rank["rank"])),
            events=_json_lines(files.faults),
            results=_json_file(files.report),
        )

    def series(self, key: str) -> list[tuple[float, float]]:
        """(step, value) of one figure of the logged steps, without undefined values."""
        return [(line["step"], line[key]) for line in self.steps if isinstance(line.get(key), (int, float))]

    def by_position(self, key: str) -> list[tuple[float, float]]:
        """(block position, value) of a figure that the last logged step gives for each position."""
        values = self.steps[-1].get(key) if self.steps else None
        return [(place, value) for place, value in enumerate(values or []) if isinstance(value, (int, float))]

    def by_rank(self, key: str) -> dict[str, list[tuple[float, float]]]:
        """For each rank (step, value) of a figure that logged steps give by rank."""
        found: dict[str, list[tuple[float, float]]] = {}
        for line in self.steps:
            for rank, value in (line.get(key) or {}).items():
                if isinstance(value, (int, float)):
                    found.setdefault(str(rank), []).append((line["step"], value))
        return found


def _once(lines: Any) -> list[dict[str, Any]]:
    latest = {line["step"]: line for line in lines if isinstance(line.get("step"), int)}
    return [latest[step] for step in sorted(latest)]


def _json_lines(path: Path) -> list[dict[str, Any]]:
    """Lines that are objects; one that a cut or a full disk left half is passed over."""
    if not path.is_file():
        return []
    found = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            found.append(line)
    return found


def _json_file(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
