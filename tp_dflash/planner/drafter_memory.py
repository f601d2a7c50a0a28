"""What training the drafter holds on one drafter rank, line by line.

In: sizes. Out: memory lines. Each follows the code that makes the tensor: FSDP2 shards of fp32 masters, gathers in the
compute dtype, and what autograd keeps of a layer (the drafter's docstring states it).
"""

from __future__ import annotations

from tp_dflash.planner.memory_line import MemoryLine
from tp_dflash.planner.run_sizes import RunSizes

_FP32 = 4


def state_lines(sizes: RunSizes) -> list[MemoryLine]:
    """Master weights, moments and gradients: fp32, each rank its share over the drafter ranks of one copy."""
    count = sizes.shape.num_parameters
    share = -(-count // sizes.shard_ranks) * _FP32
    of_all = f"{count:,} parameters {_spread(sizes)}"
    accumulated = sizes.config.training.accumulation > 1
    gradients = MemoryLine(
        "drafter gradients, fp32",
        share,
        of_all + ("; kept between micro-steps" if accumulated else "; complete when the backward pass ends"),
        ("features", "head", "backward", "gradients", "update") if accumulated else ("gradients", "update"),
    )
    return [
        MemoryLine("drafter weights, fp32 masters", share, of_all),
        _moments_line(sizes),
        gradients,
    ]


def _moments_line(sizes: RunSizes) -> MemoryLine:
    """AdamW keeps two moments of a parameter, Muon one of a matrix."""
    shape, ranks = sizes.shape, sizes.shard_ranks
    total = shape.num_parameters
    on = _spread(sizes)
    if sizes.config.optimizer.name == "adamw":
        return MemoryLine("AdamW moments, fp32", 2 * -(-total // ranks) * _FP32, f"2 x {total:,} parameters {on}")
    vectors = shape.num_vector_parameters
    return MemoryLine(
        "Muon momentum, AdamW moments of norms, fp32",
        -(-(total + vectors) // ranks) * _FP32,
        f"({total - vectors:,} + 2 x {vectors:,} parameters) {on}",
    )


def _spread(sizes: RunSizes) -> str:
    ranks = sizes.shard_ranks
    words = f"x 4 B / {ranks} drafter rank{'s' if ranks > 1 else ''}"
    return words + (" of a node" if sizes.num_copies > 1 else "")


def gather_lines(sizes: RunSizes) -> list[MemoryLine]:
    """Whole copies of parameters in the compute dtype: the root's all step long, a layer's with the next one's ahead."""
    shape, width = sizes.shape, sizes.compute_bytes
    root = (shape.feature_size + 2) * shape.hidden_size
    layer = sizes.layer_parameters
    # With other ranks to gather from, the next layer is gathered while this one computes.
    gathered = 1 if sizes.shard_ranks == 1 else 2
    return [
        MemoryLine(
            "gathered fc and norms",
            root * width,
            f"{root:,} parameters x {width} B",
            ("head", "backward", "gradients"),
        ),
        MemoryLine(
            "gathered layers",
            gathered * layer * width,
            f"{gathered} x {layer:,} parameters x {width} B",
            ("backward", "gradients"),
        ),
        MemoryLine(
            "layer gradient on its way",
            layer * (width + _FP32),
            f"{layer:,} parameters x ({width} B + 4 B for the fp32 reduction)",
            ("gradients",),
        ),
    ]


def batch_lines(sizes: RunSizes) -> list[MemoryLine]:
    """The batch beside the buffers: context features stay where they arrived, the smaller rows are padded copies."""
    shape, width = sizes.shape, sizes.target_bytes
    teacher = sizes.most_teacher_rows
    return [
        MemoryLine(
            "teacher rows and block embeddings, padded",
            (teacher + sizes.rows) * shape.hidden_size * width,
            f"({teacher:,} + {sizes.rows:,}) rows x {shape.hidden_size:,} x {width} B",
            ("head", "backward", "gradients"),
        ),
    ]


def activation_lines(sizes: RunSizes) -> list[MemoryLine]:
    """What the backward pass needs of the forward pass, and the largest working set of one layer's backward pass."""
    shape, width = sizes.shape, sizes.compute_bytes
    context = 2 * sizes.tokens * shape.hidden_size * width
    kept = kept_numbers(sizes) * width
    recomputes = sizes.config.drafter.activation_checkpointing
    layers = shape.num_layers
    formula = "N(4D + 3HE + 2I) + 3 M GE" if shape.query_size != shape.hidden_size else "N(7D + 2I) + 3 M GE"
    if recomputes:
        activations = [
            MemoryLine(
                "inputs of recomputed layers",
                layers * sizes.rows * shape.hidden_size * width,
                f"{layers} layers x {sizes.rows:,} rows x {shape.hidden_size:,} x {width} B",
                ("head", "backward"),
            ),
            MemoryLine("activations of one layer", kept, f"({formula} numbers) x {width} B", ("backward", "gradients")),
        ]
    else:
        activations = [
            MemoryLine(
                "activations", layers * kept, f"{layers} layers x ({formula} numbers) x {width} B", ("head", "backward")
            )
        ]
    return [
        MemoryLine(
            "context, before and after its norm",
            context,
            f"2 x {sizes.tokens:,} tokens x {shape.hidden_size:,} x {width} B",
            ("head", "backward", "gradients"),
        ),
        *activations,
        MemoryLine(
            "hidden rows and their gradient",
            3 * sizes.rows * shape.hidden_size * width,
            f"(after the last norm, two gradients) x {sizes.rows:,} rows x {shape.hidden_size:,} x {width} B",
            ("head", "backward"),
        ),
        MemoryLine(
            "backward pass of one layer",
            (4 * sizes.rows + shape.hidden_size) * shape.intermediate_size * width,
            f"(4 x {sizes.rows:,} rows + {shape.hidden_size:,}) x {shape.intermediate_size:,} x {width} B",
            ("backward", "gradients"),
        ),
    ]


def kept_numbers(sizes: RunSizes) -> int:
    """Numbers that autograd keeps of one layer: N (4 D + 3 H E + 2 I) + 3 M G E.

    D: inputs and outputs of both norms; H E: queries before and after the turn, and what attention returns; I: gate and
    up; G E: keys before their norm, and keys and values of all M rows as attention sees them.
    """
    shape = sizes.shape
    rows = sizes.rows * (4 * shape.hidden_size + 3 * shape.query_size + 2 * shape.intermediate_size)
    return rows + 3 * sizes.keys * shape.kv_size
