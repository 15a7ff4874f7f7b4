"""Hugging Face transformers: export formerlab decoders, load and prune transformers models and released checkpoints.

transformers has no entry points for models, so importing this package registers formerlab decoders with `AutoConfig`
and `AutoModelForCausalLM`.
"""

from transformers import AutoConfig, AutoModelForCausalLM

from formerlab.integrations.huggingface.modeling import MODEL_TYPE, FormerlabConfig, FormerlabForCausalLM

AutoConfig.register(MODEL_TYPE, FormerlabConfig, exist_ok=True)
AutoModelForCausalLM.register(FormerlabConfig, FormerlabForCausalLM, exist_ok=True)

__all__ = ["FormerlabConfig", "FormerlabForCausalLM"]
