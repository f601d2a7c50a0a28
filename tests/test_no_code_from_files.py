"""Nothing that a stranger can put into a file runs: no pickles are read, no remote code is trusted unasked."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tp_dflash"
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
CALLS = {"eval", "exec", "extractall", "unpack_archive"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_is_run(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] + [
                node.module or "" if isinstance(node, ast.ImportFrom) else ""
            ]
            assert not MODULES & {name.split(".")[0] for name in names}, f"{path.name}:{node.lineno}"
        if isinstance(node, ast.Call):
            _check_call(node, path)


def _check_call(call: ast.Call, path: Path) -> None:
    where = f"{path.name}:{call.lineno}"
    options = {option.arg: option.value for option in call.keywords}
    trusted = options.get("trust_remote_code")
    if isinstance(trusted, ast.Constant) and trusted.value:
        # The one place that is reached only where the configuration says so.
        assert path.name == "self_check.py", f"{where} trusts remote code unasked"
        assert "if config.trust_remote_code:" in path.read_text(encoding="utf-8")
    allowed = options.get("allow_pickle")
    assert not (isinstance(allowed, ast.Constant) and allowed.value), f"{where} reads pickles"
    function = call.func
    if isinstance(function, ast.Name):
        assert function.id not in CALLS, f"{where} calls {function.id}"
    if isinstance(function, ast.Attribute):
        assert function.attr not in CALLS - {"eval"}, f"{where} calls {function.attr}"
        if function.attr == "load" and isinstance(function.value, ast.Name) and function.value.id == "torch":
            only = options.get("weights_only")
            assert isinstance(only, ast.Constant), f"{where} calls torch.load without weights_only"
            assert only.value is True, f"{where} calls torch.load without weights_only"
