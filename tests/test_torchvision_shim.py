"""torchvision can be imported, even if it was compiled for another torch.

Every case runs in a new process, because operators can be declared only once.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ENSURE = "from formerlab.torchvision_shim import ensure_torchvision_imports as ensure; ensure(); ensure()\n"
DECLARED = "import torch; print(hasattr(torch.ops.torchvision, 'nms'), hasattr(torch.ops.torchvision, 'qnms'))"


@pytest.fixture
def foreign_torchvision(tmp_path: Path) -> Path:
    """A torchvision whose extension cannot be loaded, and which registers fake operators as torchvision 0.28 does."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "_C.so").write_text("compiled for another torch")
    (package / "__init__.py").write_text(
        "import torch\n"
        "for name in ('nms', 'qnms'):\n"
        "    torch.library.register_fake('torchvision::' + name)(lambda dets, scores, iou_threshold: dets)\n"
    )
    return tmp_path


def python(code: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    first = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    return subprocess.run([sys.executable, "-c", first + code], capture_output=True, text=True)


def test_torchvision_for_another_torch_is_imported_only_with_the_shim(foreign_torchvision: Path) -> None:
    without = python("import torchvision", foreign_torchvision)
    assert "operator torchvision::nms does not exist" in without.stderr
    result = python(ENSURE + "import torchvision\n" + DECLARED, foreign_torchvision)
    assert result.stdout == "True True\n", result.stderr


def test_model_classes_of_transformers_can_be_imported_after_prune() -> None:
    earlier = "try:\n    from transformers import LlamaForCausalLM\nexcept ImportError:\n    pass\n"
    result = python(earlier + "from formerlab import prune\nfrom transformers import LlamaForCausalLM")
    assert result.returncode == 0, result.stderr


def test_an_extension_that_loads_declares_its_own_operators(foreign_torchvision: Path) -> None:
    extension = foreign_torchvision / "torchvision" / "_C.so"
    extension.unlink()
    extension.symlink_to(torch._C.__file__)
    assert python(ENSURE + DECLARED, foreign_torchvision).stdout == "False False\n"
