"""Make torchvision importable with a torch build that it was not compiled for.

The package index has torchvision compiled with CUDA. With a CPU-only torch its extension does not load. torchvision
tolerates this, but it registers fake implementations of two operators that only the extension declares, so the import
fails with `operator torchvision::nms does not exist` (pytorch/vision issue 9085). timm and the model classes of
transformers, and therefore lm_eval's Hugging Face models, import torchvision and fail too. This module declares the two
operators without a kernel, which makes the import work; formerlab never calls them. `import formerlab` adds
`TorchvisionFinder` to `sys.meta_path`, so import formerlab before model classes of transformers or timm.
"""

import importlib.util
import sys
from functools import cache
from pathlib import Path

# The declarations of torchvision 0.28, in csrc/ops/nms.cpp and csrc/ops/quantized/cpu/qnms_kernel.cpp.
_OPERATORS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@cache
def ensure_torchvision_imports() -> None:
    """Declare the operators, unless torchvision is not installed, is already imported, or its extension loads."""
    if "torchvision" in sys.modules:
        return
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    import torch

    for library in sorted(Path(spec.origin).parent.glob("_C*.so"))[:1]:
        try:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
            return
        except OSError:
            break
    for name in _OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", _SCHEMA)


class TorchvisionFinder:
    """Entry of `sys.meta_path` that calls `ensure_torchvision_imports` when torchvision is first looked for."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> None:
        """Leave the search for every module to the other finders."""
        if name == "torchvision" and cls in sys.meta_path:
            sys.meta_path.remove(cls)
            ensure_torchvision_imports()
