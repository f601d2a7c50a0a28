"""Imports point down only: the floors of docs/architecture.md, read from the imports themselves."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tp_dflash"

FLOORS = {
    "config": 0, "placement": 0,
    "parallel": 1, "blocks": 1,
    "head": 2, "drafter": 2, "target": 2, "data": 2,
    "streams": 3, "formats": 3,
    "training": 4, "evaluation": 4, "planner": 4, "bench": 4, "report": 4,
    "cli": 5, "__main__": 6,
}  # fmt: skip
# Rooms on one floor that may be imported by another of that floor; everything else on one floor is a stranger.
NEIGHBOURS = {
    ("placement", "config"),
    ("training", "evaluation"),
    ("training", "planner"),
    ("bench", "training"),
    ("bench", "planner"),
}
FORBIDDEN_PACKAGES = {
    "report": {"torch", "transformers"},
    "config": {"torch", "transformers"},
    "placement": {"torch", "transformers"},
    "blocks": {"torch.distributed", "transformers"},
    "head": {"transformers"},
    "drafter": {"transformers"},
    "training": {"argparse", "typer"},
}
ENVIRONMENT_ROOMS = {"cli", "__main__"}


def _modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py" or path.parent != PACKAGE)


def _room(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def _imports(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno} imports relatively; name the room"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    room = _room(path)
    for name in _imports(path):
        assert name.split(".")[0] != "launch", f"{path.name} imports {name}: launch is the top"
        if not name.startswith("tp_dflash."):
            continue
        other = name.split(".")[1]
        if other in (room, "__version__"):
            continue
        assert other in FLOORS, f"{path.name} imports {name}: give the room {other!r} a floor"
        assert FLOORS[other] < FLOORS[room] or (room, other) in NEIGHBOURS, (
            f"{path.name} on floor {FLOORS[room]} imports {name}"
        )


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_keep_out_of_what_is_not_theirs(path: Path) -> None:
    room = _room(path)
    names = _imports(path)
    for package in FORBIDDEN_PACKAGES.get(room, set()):
        offenders = [name for name in names if name == package or name.startswith(package + ".")]
        assert not offenders, f"{path.name} imports {offenders}"
    if room not in ENVIRONMENT_ROOMS:
        text = path.read_text(encoding="utf-8")
        assert "os.environ" not in text, f"{path.name} reads the environment; pass the value down from cli"
        assert "os.getenv" not in text, f"{path.name} reads the environment; pass the value down from cli"
        for hidden in ("group.WORLD", "get_rank()", "get_world_size()"):
            assert hidden not in text, f"{path.name} asks for the world with {hidden}; make the group an argument"
