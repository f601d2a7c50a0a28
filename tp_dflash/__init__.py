"""Train DFlash drafters with both lm_heads sharded over the vocabulary."""

__version__ = "0.1.0"
