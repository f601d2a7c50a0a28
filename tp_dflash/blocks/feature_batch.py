"""What a target rank knows about a pack and a drafter rank needs: the payload of the streams."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class FeatureBatch:
    """The target's view of one pack, without any padding; T, U, A are this pack's real counts.

    features_TF: outputs of the tapped layers side by side, F = K x D, in the order of the layer ids.
    teacher_hidden_UD: the target's last hidden state, after its final norm, at the layout's unique teacher rows.
    anchor_embeddings_AD: the target's embedding rows of the anchor tokens.
    finite_documents: bool, one a document of the pack; False where the target gave a NaN or infinity: all rows of that
        document are zero then and its blocks must not be trained. None: all are finite.
    padded_features_TF: the buffer whose first rows are features_TF, as many rows as the run's fixed shapes have, zero after
        them; it saves the largest copy of a step. None: there is no such buffer.
    """

    pack_id: int
    features_TF: Tensor
    teacher_hidden_UD: Tensor
    anchor_embeddings_AD: Tensor
    finite_documents: Tensor | None = None
    padded_features_TF: Tensor | None = None
