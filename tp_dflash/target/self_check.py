"""Proof on a few tokens that what drafter ranks will compute are the target's own logits and embeddings.

In: a loaded Target. Out: the largest differences, or a ValueError that names what differs. The model's own generating
class is built without weights around the loaded decoder, with a few rows of the real lm_head in it: whatever that class does
to its logits (scales, caps, biases) shows, and the lm_head is never loaded whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import transformers
from torch import Tensor, nn

from tp_dflash.config.target import TargetConfig
from tp_dflash.target.facts import TargetFacts
from tp_dflash.target.rows import read_embedding_rows, read_head_rows
from tp_dflash.target.source import load_model_config, text_config
from tp_dflash.target.taps import text_decoder
from tp_dflash.target.target import Target

if TYPE_CHECKING:  # modelling code takes seconds to import, and planning needs none of it
    from transformers import PreTrainedConfig, PreTrainedModel

_NUM_ROWS = 64
_NUM_TOKENS = 8
# Rounding of two orders of the same products: absolute in fp32, a share of the largest value in bf16.
_FP32_TOLERANCE = 1e-4
_BF16_TOLERANCE = 2e-2


@dataclass(frozen=True)
class TargetCheck:
    """Largest absolute differences found: teacher logits against the model's, embeddings against the file's rows.

    same_top1: of num_tokens, those whose largest teacher logit stands where the model's own is largest (or as large, to
    its dtype's rounding), among the rows compared.
    """

    logits: float
    embeddings: float
    same_top1: int
    num_tokens: int


def check_target(target: Target, num_rows: int = _NUM_ROWS) -> TargetCheck:
    """Compare head @ teacher row with the model's own .logits, and embed() with ``read_embedding_rows``.

    num_rows: the first rows of the lm_head are compared; with all of them top-1 tokens are those of the vocabulary.
    ValueError if logits differ by more than 1e-4 in fp32 (2% of the largest logit in bf16), or embeddings by more than
    their rounding.
    """
    facts = target.facts
    tokens_1S = torch.linspace(0, facts.vocab_size - 1, _NUM_TOKENS).long()[None]
    head_RD = read_head_rows(target.config, facts, 0, min(num_rows, facts.vocab_size), target.device)
    _, hidden_1SD, _ = target.run(tokens_1S)
    expected = _own_logits(target, head_RD, tokens_1S).float()
    teacher = hidden_1SD.float() @ head_RD.float().T
    logits = _difference(teacher, expected, facts, "logits (a factor, cap or bias)")
    rows_SD = read_embedding_rows(target.config, facts, tokens_1S[0].tolist(), target.device)
    embeddings = _difference(
        target.embed(tokens_1S)[0].float(), rows_SD.float(), facts, "embeddings (a factor or norm)"
    )
    return TargetCheck(logits, embeddings, _same_top1(teacher, expected, facts), _NUM_TOKENS)


def _same_top1(teacher_1SV: Tensor, own_1SV: Tensor, facts: TargetFacts) -> int:
    best = own_1SV.amax(-1)
    at_teachers = own_1SV.gather(-1, teacher_1SV.argmax(-1, keepdim=True)).squeeze(-1)
    return int((at_teachers >= best - torch.finfo(facts.dtype).eps * best.abs()).sum())


def _difference(got: Tensor, expected: Tensor, facts: TargetFacts, what: str) -> float:
    difference = float((got - expected).abs().max())
    scale = max(1.0, float(expected.abs().max())) if facts.dtype == torch.float32 else float(expected.abs().max())
    limit = (_FP32_TOLERANCE if facts.dtype == torch.float32 else _BF16_TOLERANCE) * scale
    # Written so that a NaN fails too.
    if not difference <= limit:
        raise ValueError(
            f"{facts.name}: expected the model's own {what} from its rows, got a difference of {difference:.3g} (at most "
            f"{limit:.3g}); {facts.architectures or facts.model_type} does more than head @ hidden and is not supported"
        )
    return difference


def _own_logits(target: Target, head_RD: Tensor, tokens_1S: Tensor) -> Tensor:
    with torch.device("meta"):
        model = _generating_model(target.config, target.facts)
    inner = text_decoder(model)
    path = next(name for name, module in model.named_modules() if module is inner)
    model.set_submodule(path, target.decoder)
    own_head = model.get_output_embeddings()
    if own_head is None or own_head.bias is not None:
        raise ValueError(f"{target.facts.name}: expected an lm_head without bias, got {own_head}; not supported")
    head = nn.Linear(head_RD.shape[1], head_RD.shape[0], bias=False, device="meta")
    head.weight = nn.Parameter(head_RD, requires_grad=False)
    model.set_output_embeddings(head)
    with torch.inference_mode():
        return model.eval()(input_ids=tokens_1S.to(target.device), use_cache=False).logits


def _generating_model(config: TargetConfig, facts: TargetFacts) -> PreTrainedModel:
    """The class with an lm_head, on the meta device: by the config's architectures, else by transformers' own table."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

    model_config = load_model_config(config)
    for name in facts.architectures:
        if name in dir(transformers) and not config.random_weights:
            return _with_attention(getattr(transformers, name), model_config, config)
    for candidate in (text_config(model_config), model_config):
        if type(candidate) in MODEL_FOR_CAUSAL_LM_MAPPING:
            return AutoModelForCausalLM.from_config(candidate, attn_implementation=config.attention, dtype=facts.dtype)
    if config.trust_remote_code:
        return AutoModelForCausalLM.from_config(
            model_config, trust_remote_code=True, attn_implementation=config.attention, dtype=facts.dtype
        )
    raise ValueError(
        f"{facts.name}: expected a class of transformers with an lm_head, got architectures {facts.architectures}; state it in "
        "config.json"
    )


def _with_attention(
    model_class: type[PreTrainedModel], model_config: PreTrainedConfig, config: TargetConfig
) -> PreTrainedModel:
    return model_class._from_config(model_config, attn_implementation=config.attention)
