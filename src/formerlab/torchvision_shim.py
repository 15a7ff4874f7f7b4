"""Let torchvision be imported beside a torch it was not compiled for.

The torchvision of the package index is compiled against CUDA. Beside a CPU-only torch its extension does not load;
torchvision expects that, but still registers a fake for two operators that only the extension declares, and so fails
at import with `operator torchvision::nms does not exist` (pytorch/vision issue 9085). timm and the model classes of
transformers (so also lm_eval's Hugging Face models) import torchvision and fail with it. Declaring the two operators by
hand mends the import; they stay without a kernel, and nothing here calls them.
"""

import importlib.util
import sys
from functools import cache
from pathlib import Path

import torch

# As torchvision 0.28 declares them, in csrc/ops/nms.cpp and csrc/ops/quantized/cpu/qnms_kernel.cpp.
_OPERATORS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@cache
def ensure_torchvision_imports() -> None:
    """Make `import torchvision` work; call it before the first import of timm or of a model class of transformers.

    Nothing is done where torchvision is absent, imported already, or its extension loads.
    """
    if "torchvision" in sys.modules:
        return
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return
    for library in sorted(Path(found.origin).parent.glob("_C*.so"))[:1]:
        try:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
            return
        except OSError:
            break
    for name in _OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", _SCHEMA)
