"""Functions of Python's standard library to complete: signature and docstring, as a programmer would paste them.

Comes in: nothing but the interpreter that runs this. Goes out: prompts, in the files' own order. Under the PSF licence.
"""

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

_LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__", "ensurepip"}
_FORMS = (
    "Complete the following Python function.\n\n{code}",
    "Write the body of this function.\n\n{code}",
    "Implement this in Python:\n\n{code}",
)


def functions() -> list[str]:
    """One prompt a documented function."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = [path for path in sorted(root.rglob("*.py")) if not _LEFT_OUT & set(path.relative_to(root).parts)]
    found = [stub for path in paths for stub in _stubs(path)]
    return [_FORMS[number % len(_FORMS)].format(code=stub) for number, stub in enumerate(found)]


def _stubs(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_text("utf-8"))
    except (SyntaxError, UnicodeDecodeError):  # templates and encodings for the interpreter's own tests
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            documented = ast.get_docstring(node)
            if documented and 40 <= len(documented) <= 700:
                node.body = [node.body[0]]
                node.decorator_list = []
                yield ast.unparse(node)
