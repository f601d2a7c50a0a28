"""The built target folder: the checkout's own if it is there, else one built once from the installed package."""

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from launch import build_smollm2

BUILT = Path(__file__).resolve().parents[2] / "models" / "smollm2-135m"


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of SmolLM2-135M; skips where neither the folder nor the package that holds the weights is installed."""
    if build_smollm2.is_finished(BUILT):
        return BUILT
    if find_spec("gguf") is None or not any(d.name == build_smollm2.PACKAGE for d in metadata.distributions()):
        pytest.skip(f"needs {build_smollm2.INSTALL_PACKAGE} and {build_smollm2.INSTALL_GGUF}")
    out = tmp_path_factory.mktemp("models") / "smollm2-135m"
    build_smollm2.build(out)
    return out
