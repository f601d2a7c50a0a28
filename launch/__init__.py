"""Scripts that set a machine up: the quickstart's model and data, the shell entry points. Nothing imports them."""
