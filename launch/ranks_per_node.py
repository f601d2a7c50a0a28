"""Prints how many ranks a node needs for a configuration: ``python launch/ranks_per_node.py CONFIG [train's arguments]``."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from tp_dflash.config.load import ConfigError, load_config
from tp_dflash.placement import parse_gpus


def count_ranks(config: Path, arguments: list[str]) -> int:
    """GPUs that the placement names, with the ``--set`` overrides among the arguments."""
    overrides = [value for option, value in itertools.pairwise(arguments) if option == "--set"]
    overrides += [argument.removeprefix("--set=") for argument in arguments if argument.startswith("--set=")]
    placement = load_config(config, overrides).placement
    gpus = parse_gpus("placement.drafter", placement.drafter)
    if placement.target != "colocated":
        gpus |= parse_gpus("placement.target", placement.target)
    if placement.head is not None:
        gpus |= parse_gpus("placement.head", placement.head)
    return len(gpus)


if __name__ == "__main__":
    try:
        print(count_ranks(Path(sys.argv[1]), sys.argv[2:]))
    except (ConfigError, ValueError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
