"""Let the target write the quickstart's conversations.

Comes in: a target folder with a chat template, and the prompts of `quickstart_prompts`. Goes out: `train.jsonl` and
`heldout.jsonl`, one `{"messages": [user, assistant], "finish": "stop" | "length"}` a line, and printed statistics.
Every answer is the target's own greedy continuation in fp32, the arithmetic in which acceptance is measured. Held-out
conversations are of the same kinds, but share neither a prompt nor an answer with training.

    python -m launch.quickstart_data --target models/smollm2-135m --out launch/data/quickstart
"""

import argparse
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from launch.quickstart_prompts import PROMPTS_PER_KIND, SEED, prompts

MAX_NEW_TOKENS = 64
BATCH = PROMPTS_PER_KIND
HELD_OUT_PER_KIND = 3
CONFIDENT = 0.9


@dataclass(frozen=True)
class Answer:
    """One prompt and what the target wrote, with the target's own certainty at each written token."""

    kind: str
    prompt: str
    tokens: list[int]
    text: str
    finished: bool
    entropies: list[float]  # nats, of the target's distribution at each token
    peaks: list[float]  # the largest probability at each token

    def record(self) -> dict[str, Any]:
        """The conversation as it is written to the file."""
        turns = [{"role": "user", "content": self.prompt}, {"role": "assistant", "content": self.text}]
        return {"messages": turns, "finish": "stop" if self.finished else "length"}


def answer(model: Any, tokenizer: Any, kind: str, batch: list[str]) -> list[Answer]:
    """Greedy answers to a batch of prompts; padding goes to the left, so that all rows end where writing starts."""
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True)
        for prompt in batch
    ]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    with torch.inference_mode():
        output = model.generate(
            **inputs,
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
    answers = []
    for row, (prompt, sequence) in enumerate(zip(batch, output.sequences, strict=True)):
        written = sequence[inputs["input_ids"].shape[1] :].tolist()
        finished = tokenizer.eos_token_id in written
        count = written.index(tokenizer.eos_token_id) + 1 if finished else len(written)
        logp_CV = torch.stack([logits_RV[row] for logits_RV in output.logits[:count]]).log_softmax(-1)
        answers.append(
            Answer(
                kind=kind,
                prompt=prompt,
                tokens=written[:count],
                text=tokenizer.decode(written[: count - finished]),
                finished=finished,
                entropies=(-(logp_CV.exp() * logp_CV).sum(-1)).tolist(),
                peaks=logp_CV.max(-1).values.exp().tolist(),
            )
        )
    return answers


def is_faithful(tokenizer: Any, given: Answer) -> bool:
    """Whether the text, tokenised again as training will, gives the very tokens that the target wrote."""
    again = tokenizer(given.text, add_special_tokens=False)["input_ids"]
    return bool(given.text.strip()) and again == given.tokens[: len(given.tokens) - given.finished]


def split(answers: list[Answer]) -> tuple[list[Answer], list[Answer]]:
    """(train, held-out): each answer text once, the first few of each kind held out.

    Any beginning of either file is a mixture: training is shuffled, held-out goes round the kinds.
    """
    seen: set[str] = set()
    train: list[Answer] = []
    rounds: list[list[Answer]] = [[] for _ in range(HELD_OUT_PER_KIND)]
    count_of: dict[str, int] = {}
    for given in answers:
        if given.text in seen:
            continue
        seen.add(given.text)
        count = count_of.get(given.kind, 0)
        count_of[given.kind] = count + 1
        (rounds[count] if count < HELD_OUT_PER_KIND else train).append(given)
    random.Random(SEED).shuffle(train)
    return train, [given for each in rounds for given in each]


def write(path: Path, answers: list[Answer]) -> None:
    """One conversation a line."""
    path.write_text("".join(json.dumps(given.record(), ensure_ascii=False) + "\n" for given in answers), "utf-8")


def describe(name: str, tokenizer: Any, answers: list[Answer]) -> str:
    """Counts and certainties of one file, in one line."""
    lengths = sorted(
        len(tokenizer(tokenizer.apply_chat_template(a.record()["messages"], tokenize=False))["input_ids"])
        for a in answers
    )
    entropies = [value for a in answers for value in a.entropies]
    peaks = [value for a in answers for value in a.peaks]
    deciles = [lengths[round(share * (len(lengths) - 1) / 10)] for share in range(0, 11, 2)]
    return (
        f"{name}: {len(answers)} documents ({sum(a.finished for a in answers)} finished), {sum(lengths)} tokens "
        f"(0/20/40/60/80/100%: {'/'.join(map(str, deciles))}), {len(peaks)} written by the target, "
        f"entropy {sum(entropies) / len(entropies):.3f} nats, "
        f"{sum(peak > CONFIDENT for peak in peaks) / len(peaks):.1%} of them with probability > {CONFIDENT}"
    )


def main() -> None:
    """Command line: answer every prompt, split, write both files, print the statistics."""
    parser = argparse.ArgumentParser(description="Let the target write the quickstart's conversations.")
    parser.add_argument("--target", type=Path, default=Path("models/smollm2-135m"), help="Hugging Face folder")
    parser.add_argument("--out", type=Path, default=Path("launch/data/quickstart"), help="folder of the two files")
    arguments = parser.parse_args()
    if not (arguments.target / "config.json").is_file():
        sys.exit(f"quickstart_data: {arguments.target} holds no model; python launch/build_smollm2.py makes one")
    tokenizer: Any = AutoTokenizer.from_pretrained(arguments.target)
    model: Any = AutoModelForCausalLM.from_pretrained(arguments.target, dtype=torch.float32).eval()
    answers: list[Answer] = []
    for kind, texts in prompts().items():
        for start in range(0, len(texts), BATCH):
            answers += answer(model, tokenizer, kind, texts[start : start + BATCH])
        print(f"{kind}: {len(texts)} answers", flush=True)
    kept = [given for given in answers if is_faithful(tokenizer, given)]
    train, held_out = split(kept)
    arguments.out.mkdir(parents=True, exist_ok=True)
    write(arguments.out / "train.jsonl", train)
    write(arguments.out / "heldout.jsonl", held_out)
    print(f"{len(answers)} answers, {len(kept)} of them the same tokens when read again")
    print(describe("train", tokenizer, train))
    print(describe("heldout", tokenizer, held_out))


if __name__ == "__main__":
    main()
