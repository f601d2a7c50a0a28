#!/usr/bin/env bash
# Trains on one machine: launch/single_node.sh CONFIG [arguments of tp-dflash train]
# A run that stopped or failed goes on from its newest checkpoint when it is started again.
# MAX_RESTARTS  how often torchrun starts the ranks again by itself after a failure (default 0)
set -euo pipefail
# shellcheck source=launch/torchrun.sh
. "$(dirname "${BASH_SOURCE[0]}")/torchrun.sh"
config="${1:?usage: launch/single_node.sh CONFIG [arguments of tp-dflash train]}"
shift
ranks="$(ranks_per_node "$config" "$@")"
run_with_signals torchrun --standalone --nproc-per-node "$ranks" --max-restarts "${MAX_RESTARTS:-0}" --shutdown-timeout 300 \
    -m tp_dflash train "$config" "$@"
