"""``tp-dflash regenerate`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from typer.testing import CliRunner

from tests.data.regeneration.unreliable_server import UnreliableServer
from tp_dflash.cli.regenerate import regenerate
from tp_dflash.config.load import ConfigError

app = typer.Typer()
app.command()(regenerate)


def arguments(folder: Path, url: str) -> list[str]:
    (folder / "in.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    source, output = str(folder / "in.jsonl"), str(folder / "out.jsonl")
    return [source, "--output", output, "--model", "tiny", "--server", url, "--retries", "0", "--temperature", "0.5"]


def test_answers_are_written_and_counted(tmp_path: Path) -> None:
    with UnreliableServer() as server:
        result = CliRunner().invoke(app, [*arguments(tmp_path, server.url), "--no-thinking"])
    assert result.exit_code == 0, result.output
    assert "2 of 2 answers to 2 records are in" in result.output
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {record["messages"][1]["content"] for record in records} == {"echo: one", "echo: two"}
    assert records[0]["generation"] == {"model": "tiny", "temperature": 0.5, "max_tokens": 2048, "thinking": False}


def test_failures_are_told_by_the_exit_code(tmp_path: Path) -> None:
    with UnreliableServer(lambda question, _: "400" if question == "two" else None) as server:
        result = CliRunner().invoke(app, arguments(tmp_path, server.url))
        assert result.exit_code == 1
        assert "1 failed and 0 ask nothing" in result.output
        result = CliRunner().invoke(app, arguments(tmp_path, server.url))
        assert "1 of 2 answers to 2 records are in" in result.output


def test_several_answers(tmp_path: Path) -> None:
    with UnreliableServer() as server:
        result = CliRunner().invoke(app, [*arguments(tmp_path, server.url), "--answers", "3"])
    assert result.exit_code == 0, result.output
    assert "6 of 6 answers to 2 records are in" in result.output
    greedy = CliRunner().invoke(app, [*arguments(tmp_path, server.url), "--answers", "3", "--temperature", "0"])
    assert isinstance(greedy.exception, ConfigError)
    assert "expected sampling, got temperature 0" in str(greedy.exception)


def test_mistakes_are_errors_of_the_configuration(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, arguments(tmp_path, "ftp://nowhere"))
    assert isinstance(result.exception, ConfigError)
    assert "--server" in str(result.exception)
