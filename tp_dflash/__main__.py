"""``python -m tp_dflash COMMAND`` is ``tp-dflash COMMAND``: the form that torchrun starts."""

from tp_dflash.cli import main

if __name__ == "__main__":
    main()
