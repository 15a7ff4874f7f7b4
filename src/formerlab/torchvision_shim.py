"""Make torchvision importable with a CPU build of torch.

The package index has torchvision compiled with CUDA, whose extension does not load with a CPU build of torch.
torchvision ignores this, but it registers fake implementations of two operators that only the extension declares, so
the import fails with `operator torchvision::nms does not exist` (pytorch/vision issue 9085). timm and the model classes
of transformers, and therefore lm_eval's Hugging Face models, import torchvision and fail, too. This module declares the
two operators without a kernel, so that the import succeeds; formerlab never calls the operators.
"""

import importlib.util
import sys
from functools import cache
from pathlib import Path

import torch

# The declarations of torchvision 0.28, in csrc/ops/nms.cpp and csrc/ops/quantized/cpu/qnms_kernel.cpp.
_OPERATORS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@cache
def ensure_torchvision_imports() -> None:
    """Make `import torchvision` work; call this before the first import of timm or of a model class of transformers.

    Nothing is changed if torchvision is not installed or already imported, or if its extension loads.
    """
    if "torchvision" in sys.modules:
        return
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    for library in sorted(Path(spec.origin).parent.glob("_C*.so"))[:1]:
        try:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
            return
        except OSError:
            break
    for name in _OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", _SCHEMA)
