#!/usr/bin/env bash
# Sourced by the other scripts: makes and enters the virtual environment .venv of this checkout, installing what is missing.
# TP_DFLASH_TORCH   what pip is asked for as torch (default: torch==2.13.0 without a GPU, torch>=2.11 with one)
# TP_DFLASH_VENV    another place for the environment

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root" || exit 1
venv="${TP_DFLASH_VENV:-$root/.venv}"

has_gpu() { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; }

# install_environment EXTRAS: once per set of extras and per state of setup.cfg.
install_environment() {
    local extras="$1" stamp wanted
    stamp="$venv/.tp_dflash-$extras"
    wanted="$(cat setup.cfg tp_dflash/__init__.py | cksum)"
    if [ ! -x "$venv/bin/python" ]; then
        echo "making the environment $venv"
        "${PYTHON:-python3}" -m venv "$venv"
    fi
    # shellcheck disable=SC1091
    . "$venv/bin/activate"
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    echo "installing tp_dflash[$extras] (once; a few minutes)"
    # First and pinned, so that a machine without a GPU has the version that the tests know. Where pip's index offers it with CUDA
    # libraries only (several GB), name a CPU build in TP_DFLASH_TORCH, or pip's own settings the index that has one.
    if has_gpu; then
        python -m pip install --quiet "${TP_DFLASH_TORCH:-torch>=2.11}"
    else
        python -m pip install --quiet "${TP_DFLASH_TORCH:-torch==2.13.0}"
    fi
    python -m pip install --quiet --editable ".[$extras]"
    echo "$wanted" >"$stamp"
}
