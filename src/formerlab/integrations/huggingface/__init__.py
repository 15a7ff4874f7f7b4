"""Hugging Face transformers: export formerlab decoders, load and prune transformers models and released checkpoints.

transformers has no entry points for models, so importing this package registers formerlab decoders with `AutoConfig`
and `AutoModelForCausalLM`.
"""

from formerlab.torchvision_shim import ensure_torchvision_imports

ensure_torchvision_imports()  # before any module of this package imports a model class

from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from formerlab.integrations.huggingface.modeling import MODEL_TYPE, FormerlabConfig, FormerlabForCausalLM  # noqa: E402

AutoConfig.register(MODEL_TYPE, FormerlabConfig, exist_ok=True)
AutoModelForCausalLM.register(FormerlabConfig, FormerlabForCausalLM, exist_ok=True)

__all__ = ["FormerlabConfig", "FormerlabForCausalLM"]
