"""Draw docs/blocks.svg: one block beside its labels and teacher rows, and who sees whom, asked of the package itself.

python docs/draw_blocks.py
"""

from __future__ import annotations

from pathlib import Path

import torch

from tp_dflash.blocks import AnchorCaps, BlockGeometry, BlockLayout, Document, Pack, visible

CELL, GAP = 22, 6
INK, PALE = "#1f2933", "#d9dee4"
CONTEXT, ANCHOR, MASKED, TEACHER, LABEL = "#7aa6d8", "#e0a84f", "#f3ddb3", "#cfe6cf", "#a9d3a9"
BLOCK_SIZE = 4


class Picture:
    """Shapes collected as SVG text; coordinates in pixels from the top left."""

    def __init__(self, width: int, height: int) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{INK}">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
        ]

    def box(self, x: float, y: float, fill: str, text: str = "", width: float = CELL, outline: str = "white") -> None:
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{CELL}" rx="2" fill="{fill}" stroke="{outline}"/>'
        )
        if text:
            self.text(x + width / 2, y + CELL / 2 + 4, text, anchor="middle")

    def text(
        self, x: float, y: float, text: str, anchor: str = "start", weight: str = "normal", size: int = 12
    ) -> None:
        self.parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" font-size="{size}">{text}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, color: str = INK) -> None:
        self.parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{color}" stroke-width="1.2"/>')

    def save(self, path: Path) -> None:
        path.write_text("\n".join([*self.parts, "</svg>"]) + "\n", encoding="utf-8")


def draw_block(picture: Picture, x: int, y: int) -> None:
    """One document, its anchor at 3, the last but one token unsupervised: what each block position is given and asked."""
    loss_mask = torch.tensor([0, 0, 1, 1, 1, 1, 0, 1], dtype=torch.bool)
    pack = Pack(0, 0, (Document(0, torch.arange(8), loss_mask),))
    layout = BlockLayout.build(pack, AnchorCaps(per_pack=8), seed=0, block_size=BLOCK_SIZE)
    row = layout.anchor_A.tolist().index(3) * BLOCK_SIZE
    picture.text(x, y - 14, "One block: anchor at position 3, B = 4", weight="bold", size=14)
    step = CELL + 12
    left = x + 150
    for index in range(8):
        supervised = bool(loss_mask[index])
        picture.box(left + index * step, y, CONTEXT if index < 3 else PALE, f"x{index}")
        if supervised:
            picture.line(left + index * step, y + CELL + 3, left + index * step + CELL, y + CELL + 3)
    picture.text(x, y + 15, "document (supervised:")
    picture.text(x, y + 29, "underlined)")
    names = {"input": y + 62, "position": y + 88, "label": y + 114, "teacher row": y + 140}
    for name, top in names.items():
        picture.text(x, top + 15, name)
    for k in range(BLOCK_SIZE):
        at = left + (3 + k) * step
        picture.box(at, names["input"], ANCHOR if k == 0 else MASKED, "x3" if k == 0 else "M")
        picture.text(at + CELL / 2, names["position"] + 15, str(3 + k), anchor="middle")
        if layout.valid_N[row + k]:
            label = int(layout.labels_N[row + k])
            teacher = int(layout.teacher_row_U[layout.teacher_index_N[row + k]])
            picture.box(at, names["label"], LABEL, f"x{label}")
            picture.box(at, names["teacher row"], TEACHER, f"h{teacher}")
        else:
            picture.text(at + CELL / 2, names["label"] + 15, "-", anchor="middle")
            picture.text(at + CELL / 2, names["teacher row"] + 15, "-", anchor="middle")
    notes = (
        "The block sees the features of x0, x1, x2 (blue): strictly before its anchor.",
        "Position 0 is given and never asked. Position k predicts its own token; the teacher is the",
        "target's last hidden state one token earlier, where the target itself predicts that token.",
        "Position 3 would be x6, which is not supervised: the block is cut there.",
    )
    for number, note in enumerate(notes):
        picture.text(x, y + 190 + number * 17, note)


def draw_visibility(picture: Picture, x: int, y: int, title: str, window: int | None, causal: bool) -> None:
    """Rows: two blocks; columns: context of two documents and the blocks' own rows."""
    lengths, anchors = (7, 5), ((0, 5), (1, 2))
    document = torch.tensor([index for index, length in enumerate(lengths) for _ in range(length)])
    position = torch.tensor([place for length in lengths for place in range(length)])
    geometry = BlockGeometry.build(document, position, *torch.tensor(anchors).T, BLOCK_SIZE)
    num_context, num_rows = len(document), len(anchors) * BLOCK_SIZE
    seen = visible(
        geometry,
        torch.arange(num_rows)[:, None],
        torch.arange(num_context + num_rows)[None],
        window=window,
        causal=causal,
    )
    picture.text(x, y - 44, title, weight="bold", size=14)
    picture.text(x, y - 4, "document, a", size=9)
    size = CELL - 4
    for key in range(num_context + num_rows):
        left = (
            x
            + 70
            + key * size
            + sum(GAP for edge in (lengths[0], num_context, num_context + BLOCK_SIZE) if key >= edge)
        )
        color = CONTEXT if key < num_context else ANCHOR
        if key in (0, lengths[0]):
            picture.text(left, y - 18, f"document {int(document[key])}")
        elif key == num_context:
            picture.text(left, y - 18, "own rows of the blocks")
        picture.text(left + size / 2, y - 4, str(int(geometry.position_M[key])), anchor="middle", size=9)
        for row in range(num_rows):
            top = y + row * size + (GAP if row >= BLOCK_SIZE else 0)
            fill = color if seen[row, key] else "#f4f6f8"
            picture.parts.append(
                f'<rect x="{left}" y="{top}" width="{size - 2}" height="{size - 2}" rx="2" fill="{fill}"/>'
            )
    for block, (owner, anchor) in enumerate(anchors):
        picture.text(x, y + 14 + block * (BLOCK_SIZE * size + GAP), f"{owner}, a={anchor}", size=11)
        for k in range(BLOCK_SIZE):
            top = y + (block * BLOCK_SIZE + k) * size + block * GAP
            picture.text(x + 64, top + 13, f"k={k}", anchor="end", size=9)


def main() -> None:
    """Write blocks.svg beside this script."""
    picture = Picture(640, 780)
    draw_block(picture, 24, 46)
    draw_visibility(picture, 24, 380, "Full layers: context before the anchor, the whole own block", None, False)
    draw_visibility(picture, 24, 610, "Sliding layers (window 4): later positions hidden, far context too", 4, True)
    picture.save(Path(__file__).with_name("blocks.svg"))


if __name__ == "__main__":
    main()
