"""The page stands alone, shows what the files say, survives half-written files, and runs nothing that they contain."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tp_dflash.report import RunRecord, write_page

EVIL = "<script>alert(1)</script>"


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def run(tmp_path: Path) -> Path:
    def line(step: int, loss: float | None) -> str:
        figures = {"step": step, "loss": loss, "learning_rate": 1e-3, "accuracy_by_position": [None, 0.5, 0.25]}
        return json.dumps(figures | {"peak_gib_by_rank": {"0": 1.5, "1": 2.0}, "tokens_per_second": 100.0 + step})

    (tmp_path / "run.json").write_text(json.dumps({"argv": ["tp-dflash", EVIL], "world": EVIL, "config": {"a": EVIL}}))
    (tmp_path / "metrics.jsonl").write_text(
        "\n".join([line(2, 3.5), line(4, 3.0), line(4, 2.5), line(6, None), '{"st'])
    )
    event = {"kind": "resumed", "step": 2, "text": EVIL, "details": {}, "written_at": 1.0}
    (tmp_path / "faults.jsonl").write_text(json.dumps(event) + "\n")
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "rank-0.json").write_text(json.dumps({"rank": 0, "role": EVIL, "peak_bytes": 5}))
    return tmp_path


def test_the_page_is_well_formed_and_self_contained(run: Path) -> None:
    write_page(RunRecord.read(run), run / "out" / "report.html")
    text = (run / "out" / "report.html").read_text()
    tags = _Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.links == []
    assert "script" not in tags.seen
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "1 x resumed" in text
    assert "http" not in re.sub(r"https?://www\.w3\.org\S*", "", text)


def test_a_step_that_was_taken_again_counts_as_it_came_out_last(run: Path) -> None:
    record = RunRecord.read(run)
    assert record.series("loss") == [(2, 3.5), (4, 2.5)]
    assert record.by_position("accuracy_by_position") == [(1, 0.5), (2, 0.25)]
    assert record.by_rank("peak_gib_by_rank")["1"] == [(2, 2.0), (4, 2.0), (6, 2.0)]


def test_a_run_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    write_page(RunRecord.read(tmp_path), tmp_path / "report.html")
    assert "nothing was logged" in (tmp_path / "report.html").read_text()


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a run's folder with run\.json"):
        RunRecord.read(tmp_path)
