#!/usr/bin/env bash
# Trains on several machines: run it on each of them, with the same CONFIG, arguments and environment:
#   NODES=4 HEAD=node0:29400 launch/multi_node.sh CONFIG [arguments of tp-dflash train]
# NODES         how many machines take part
# HEAD          name and port of the first machine, where the ranks meet
# JOB_ID        the same on all machines of a job (default: tp_dflash)
# MAX_RESTARTS  how often the ranks are started again after a failure (default 3); they go on from the newest checkpoint. A machine
#               that was lost may be started again, or another in its place, with the same command; only the first must stay
# LOCAL_ADDRESS the address by which the others reach this machine, where its own name does not lead there (torchrun --local-addr)
# The run folder, the prepared data and the target must lie on a disk that all machines share. NCCL finds the network by
# itself; where it does not, set NCCL_SOCKET_IFNAME and NCCL_IB_HCA (GLOO_SOCKET_IFNAME on CPUs).
set -euo pipefail
# shellcheck source=launch/torchrun.sh
. "$(dirname "${BASH_SOURCE[0]}")/torchrun.sh"
config="${1:?usage: NODES=n HEAD=host:port launch/multi_node.sh CONFIG [arguments of tp-dflash train]}"
shift
: "${HEAD:?host:port of the first machine}"
ranks="$(ranks_per_node "$config" "$@")"

# One machine holds the meeting point. torchrun looks for itself in the name service, where not every machine is listed.
head_name="${HEAD%:*}"
head_address="$(getent ahostsv4 "$head_name" | awk 'NR == 1 { print $1 }' || true)"
meeting=()
case " $(hostname) $(hostname -I) " in
    *" $head_name "* | *" ${head_address:-none} "*) meeting=(--rdzv-conf is_host=true) ;;
    *) case "$head_address" in 127.*) ;; *) meeting=(--rdzv-conf is_host=false) ;; esac ;;
esac

# With the agents' shared store a machine that takes a lost one's place is never told the address of the ranks' store, and all wait
# for each other until they give up (torch 2.13). So the first rank of each start holds the store.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

local_address=()
if [ -n "${LOCAL_ADDRESS:-}" ]; then local_address=(--local-addr "$LOCAL_ADDRESS"); fi
run_with_signals torchrun --nnodes "${NODES:?number of machines}" --nproc-per-node "$ranks" \
    --rdzv-backend c10d --rdzv-endpoint "$HEAD" --rdzv-id "${JOB_ID:-tp_dflash}" \
    "${meeting[@]}" "${local_address[@]}" --max-restarts "${MAX_RESTARTS:-3}" --shutdown-timeout 300 -m tp_dflash train "$config" "$@"
