#!/usr/bin/env bash
# Two machines made of two network namespaces with addresses of their own: torchrun on each trains one run; one agent is killed
# with its ranks and started again; the run goes on and its weights equal those of the run that nothing cut. Needs root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder="$(mktemp -d)"
spaces=(tpd-a tpd-b)
clean() {
    for space in "${spaces[@]}"; do ip netns pids "$space" 2>/dev/null | xargs -r kill -9 2>/dev/null || true; done
    for space in "${spaces[@]}"; do ip netns del "$space" 2>/dev/null || true; done
    rm -rf "$folder"
}
trap clean EXIT
for space in "${spaces[@]}"; do ip netns add "$space"; done
ip link add tpd-va netns tpd-a type veth peer name tpd-vb netns tpd-b
ip -n tpd-a addr add 10.77.0.1/24 dev tpd-va && ip -n tpd-a link set tpd-va up && ip -n tpd-a link set lo up
ip -n tpd-b addr add 10.77.0.2/24 dev tpd-vb && ip -n tpd-b link set tpd-vb up && ip -n tpd-b link set lo up

python - "$folder" <<'P'
import sys
from pathlib import Path
from tests.cli.job import write_config
place = {"target": "0", "drafter": "1"}
for run in ("whole", "cut"):
    write_config(Path(sys.argv[1]), run, place, training={"epochs": 30}, checkpoint={"every_steps": 5})
P

# node SPACE ADDRESS INTERFACE RUN
node() {
    NODES=2 HEAD=10.77.0.1:29400 LOCAL_ADDRESS="$2" GLOO_SOCKET_IFNAME="$3" MAX_RESTARTS=0 JOB_ID="$4-$5" \
        ip netns exec "$1" launch/multi_node.sh "$folder/$4.toml" >"$folder/$4-$1-$5.log" 2>&1
}
# both RUN START
both() {
    node tpd-a 10.77.0.1 tpd-va "$1" "$2" &
    first=$!
    node tpd-b 10.77.0.2 tpd-vb "$1" "$2" &
    second=$!
}
both whole 0 && wait "$first" && wait "$second"
echo "uninterrupted: done"

both cut 0
until [ -d "$folder/cut/checkpoints/step-00000010" ]; do sleep 0.2; done
killed_at="$SECONDS"
ip netns pids tpd-b | xargs kill -9
code=0
wait "$first" || code=$?
wait "$second" || true
echo "killed every process of the second node: the first node ended with code $code after $((SECONDS - killed_at)) s"
[ "$code" -ne 0 ]
grep -h "failed first\|has said nothing\|lost\|is gone" "$folder"/cut-tpd-a-0.log | head -n 3 || true
both cut 1 && wait "$first" && wait "$second"
grep -h "continued from" "$folder"/cut-tpd-a-1.log "$folder"/cut-tpd-b-1.log | sed "s|$folder/||"
cmp "$folder/whole/export/model.safetensors" "$folder/cut/export/model.safetensors" && echo "the weights are bit-equal"
