"""What we use of transformers' model code, imported once torchvision can be imported (see `torchvision_shim`)."""

from formerlab.torchvision_shim import ensure_torchvision_imports

ensure_torchvision_imports()

from transformers import (  # noqa: E402
    AttentionInterface,
    DynamicCache,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.cache_utils import Cache  # noqa: E402
from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: E402
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask  # noqa: E402
from transformers.modeling_outputs import CausalLMOutputWithPast  # noqa: E402

__all__ = [
    "AttentionInterface",
    "AttentionMaskInterface",
    "Cache",
    "CausalLMOutputWithPast",
    "DynamicCache",
    "GenerationMixin",
    "PreTrainedModel",
    "sdpa_attention_forward",
    "sdpa_mask",
]
