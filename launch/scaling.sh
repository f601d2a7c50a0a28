#!/usr/bin/env bash
# Runs the same work on several numbers of nodes and draws how it scales:
#   launch/scaling.sh CONFIG --nodes 1,2,4 [--steps 30] [--out runs/scaling] [-- arguments of tp-dflash train]
# Inside a Slurm allocation the nodes are real ones; elsewhere each node is a torchrun of its own on this machine, which is
# meant for CPU ranks. Each number of nodes has a run folder under OUT; OUT gets scaling.json, scaling.md and scaling.png.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=launch/torchrun.sh
. "$here/torchrun.sh"
usage="usage: launch/scaling.sh CONFIG --nodes 1,2,4 [--steps N] [--out FOLDER] [-- arguments]"
config="${1:?$usage}"
shift
nodes="" steps=30 out=runs/scaling
while [ $# -gt 0 ]; do
    case "$1" in
        --nodes) nodes="$2" && shift 2 ;;
        --steps) steps="$2" && shift 2 ;;
        --out) out="$2" && shift 2 ;;
        --) shift && break ;;
        *) echo "$usage" >&2 && exit 2 ;;
    esac
done
: "${nodes:?$usage}"

for count in ${nodes//,/ }; do
    run="$out/nodes-$count"
    rm -rf "$run"
    arguments=("$config" --set "training.run_folder=$run" --set "training.max_steps=$steps" --set logging.every_steps=1
        --set "checkpoint.every_steps=$steps" --set "evaluation.prompts=[]" "$@")
    export NODES="$count" JOB_ID="scaling-$count-$$" MAX_RESTARTS=0
    echo "$count nodes: $run"
    if [ -n "${SLURM_JOB_ID:-}" ]; then
        HEAD="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):$((20000 + RANDOM % 20000))"
        export HEAD
        srun --nodes "$count" --ntasks "$count" --ntasks-per-node 1 "$here/multi_node.sh" "${arguments[@]}"
    else
        export HEAD="localhost:$((20000 + RANDOM % 20000))"
        agents=()
        for ((node = 0; node < count; node++)); do
            "$here/multi_node.sh" "${arguments[@]}" >"$out-node-$node.log" 2>&1 &
            agents+=("$!")
        done
        for agent in "${agents[@]}"; do
            wait "$agent" || { tail -n 20 "$out"-node-*.log >&2 && exit 1; }
        done
        rm -f "$out"-node-*.log
    fi
done
python "$here/scaling.py" "$config" --out "$out" --nodes "$nodes" "$@"
