#!/usr/bin/env bash
# Makes the environment and runs the tests; arguments go to pytest.
set -euo pipefail
# shellcheck source=launch/environment.sh
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
install_environment "test,data,plot"
export OMP_NUM_THREADS=1
python -m pytest "$@"
