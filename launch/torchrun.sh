# shellcheck shell=bash
# Sourced by the launch scripts: the number of ranks that a configuration asks for, and torchrun under signals.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if [ -z "${VIRTUAL_ENV:-}" ] && [ -f "$root/.venv/bin/activate" ]; then
    # shellcheck disable=SC1091
    . "$root/.venv/bin/activate"
fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

# ranks_per_node CONFIG ARGUMENTS...: as many as the placement names GPUs; --set among the arguments counts.
ranks_per_node() { python "$root/launch/ranks_per_node.py" "$@"; }

# run_with_signals COMMAND...: TERM, INT and USR1 go to the ranks, not to torchrun, which would end them after half a minute
# and exit with an error. The ranks finish their step, save and exit 0; then so does torchrun. A second signal ends them.
run_with_signals() {
    local agent code name
    # A scheduler may signal every process: torchrun dies of USR1 unless it ignores it. The ranks set their own handlers.
    (
        trap '' USR1
        exec setsid "$@"
    ) &
    agent=$!
    for name in TERM INT USR1; do
        # shellcheck disable=SC2064
        trap "signal_ranks $agent $name" "$name"
    done
    code=0
    wait "$agent" || code=$?
    while kill -0 "$agent" 2>/dev/null; do
        code=0
        wait "$agent" || code=$?
    done
    wait "$agent" 2>/dev/null && code=0
    trap - TERM INT USR1
    return "$code"
}

# signal_ranks AGENT NAME
signal_ranks() {
    local ranks
    ranks="$(cat /proc/"$1"/task/*/children 2>/dev/null || true)"
    # shellcheck disable=SC2086
    if [ -n "$ranks" ]; then kill -s "$2" $ranks 2>/dev/null || true; else kill -s TERM "$1" 2>/dev/null || true; fi
}
