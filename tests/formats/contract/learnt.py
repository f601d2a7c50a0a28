"""A tiny drafter that has really learnt, and its target: what behaviour is judged on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config

from tp_dflash.blocks import AnchorCaps, BlockGeometry, BlockLayout, Document, Pack
from tp_dflash.config.drafter import DrafterConfig
from tp_dflash.config.target import TargetConfig
from tp_dflash.drafter import Drafter, DrafterShape
from tp_dflash.formats import PublishedDrafter
from tp_dflash.target import Target, TargetFacts, read_head_rows, read_target_facts

CPU = torch.device("cpu")
VOCAB = 40


@dataclass(frozen=True, eq=False)
class Learnt:
    config: TargetConfig
    facts: TargetFacts
    head_VD: Tensor
    drafter: Drafter
    documents: list[Document]

    @property
    def published(self) -> PublishedDrafter:
        tensors = {name: parameter.detach().clone() for name, parameter in self.drafter.named_parameters()}
        return PublishedDrafter(self.drafter.shape, tensors)

    def target(self, layer_ids) -> Target:
        return Target.load(self.config, self.facts, layer_ids, CPU)


def write_tiny_model(folder: Path) -> TargetConfig:
    """A random Qwen3 whose layers differ a lot from each other."""
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=32, intermediate_size=48, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=4, head_dim=8,
        vocab_size=VOCAB, max_position_embeddings=512, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        initializer_range=0.5, tie_word_embeddings=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return TargetConfig(path=str(folder), dtype="float32")


def made_documents(count: int, seed: int) -> list[Document]:
    """Text with a rule: the next token is one of four fixed functions of the last, and the first token says which."""
    rules = [torch.randperm(VOCAB - 8, generator=torch.Generator().manual_seed(rule)) + 4 for rule in range(4)]
    generator = torch.Generator().manual_seed(seed)
    documents = []
    for document_id in range(count):
        rule = int(torch.randint(4, (1,), generator=generator))
        tokens = [rule + 35, int(torch.randint(4, VOCAB - 4, (1,), generator=generator))]
        while len(tokens) < 40:
            tokens.append(int(rules[rule][tokens[-1] - 4]))
        documents.append(Document(document_id, torch.tensor(tokens), torch.ones(40, dtype=torch.bool)))
    return documents


def learn(folder: Path, steps: int = 170, **settings) -> Learnt:
    """Train on made text for a few seconds; labels are the text itself."""
    config = write_tiny_model(folder)
    facts = read_target_facts(config)
    section = {"mask_token_id": 3, "block_size": 4, "num_layers": 2, "target_layer_ids": [2, 5], **settings}
    shape = DrafterShape.of(DrafterConfig(**section), facts)
    drafter = Drafter(shape)
    drafter.initialise(0, std=0.1)
    head_VD = read_head_rows(config, facts, 0, VOCAB)
    learnt = Learnt(config, facts, head_VD, drafter, made_documents(24, seed=10_000))
    train(learnt, lambda step: made_documents(4, seed=step), steps)
    return learnt


def train(learnt: Learnt, documents_of: Callable[[int], list[Document]], steps: int) -> None:
    drafter, shape = learnt.drafter, learnt.drafter.shape
    target = learnt.target(shape.target_layer_ids)
    mask_D = target.embed(torch.tensor([shape.mask_token_id]))[0].clone()
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=4e-3)
    for step in range(steps):
        pack = Pack(step, 0, tuple(documents_of(step)))
        layout = BlockLayout.build(pack, AnchorCaps(per_pack=48), step, shape.block_size, shape.label_mode)
        features = target.features(layout)
        geometry = BlockGeometry.build(
            pack.document_index_T, pack.position_T, layout.anchor_document_A, layout.anchor_position_A, shape.block_size
        )
        hidden_ND = drafter(features.features_TF, features.anchor_embeddings_AD, mask_D, geometry)
        logits_NV = hidden_ND[layout.valid_N] @ learnt.head_VD.T
        loss = F.cross_entropy(logits_NV, layout.labels_N[layout.valid_N])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
