"""Where the features come from: the outputs of the target's tapped decoder layers.

In: a Hugging Face model and layer ids. Out: hooks that hand over the output of layer i for each id i (hidden_states[i+1]
of the model). Layers are found by structure, so wrappers and families need no table of names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from tp_dflash.blocks.layer_ids import check_layer_ids

Receive = Callable[[int, Tensor], None]


def text_decoder(model: nn.Module) -> nn.Module:
    """The module that turns token ids into the last hidden state: the model itself, or what a wrapper holds inside."""
    if not hasattr(model, "get_decoder"):
        return model
    inner: nn.Module = model.get_decoder()  # type: ignore[operator]
    return inner if inner is model else text_decoder(inner)


def decoder_layers(decoder: nn.Module, num_layers: int) -> nn.ModuleList:
    """The decoder's one list of ``num_layers`` layers; ValueError if there is none or more than one."""
    lists = {
        name: module
        for name, module in decoder.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == num_layers
    }
    # Lists inside a layer (experts, heads) may have the same length by chance: the outermost one holds the layers.
    depth = min((name.count(".") for name in lists), default=0)
    outermost = {name: module for name, module in lists.items() if name.count(".") == depth}
    if len(outermost) != 1:
        raise ValueError(
            f"{type(decoder).__name__}: expected one list of {num_layers} decoder layers, got {sorted(outermost) or 'none'}; "
            "this architecture is not supported"
        )
    return next(iter(outermost.values()))


class LayerTaps:
    """Hooks on the tapped layers; silent except inside ``into``."""

    def __init__(self, layers: nn.ModuleList, layer_ids: Sequence[int]) -> None:
        check_layer_ids(layer_ids, len(layers))
        self._receive: Receive | None = None
        self._handles = [
            layers[layer_id].register_forward_hook(self._hook(tap)) for tap, layer_id in enumerate(layer_ids)
        ]

    @contextmanager
    def into(self, receive: Receive) -> Iterator[None]:
        """Within the block, every tapped layer's output goes to ``receive(tap index, hidden_RSD)``."""
        self._receive = receive
        try:
            yield
        finally:
            self._receive = None

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _hook(self, tap: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if self._receive is not None:
                self._receive(tap, output[0] if isinstance(output, tuple) else output)

        return hook
