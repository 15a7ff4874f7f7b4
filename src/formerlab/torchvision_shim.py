"""Make torchvision importable with a CPU build of torch.

The torchvision wheel on PyPI is compiled with CUDA, and its extension does not load with a CPU build of torch. The
import of torchvision, timm and the model classes of transformers then fails with `operator torchvision::nms does not
exist` (pytorch/vision issue 9085). This module declares the missing operators without a kernel.
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
    """Make `import torchvision` work; call this before the first import of timm or of a model class of transformers."""
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
