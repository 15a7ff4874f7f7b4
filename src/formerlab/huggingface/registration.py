"""Our classes made known to transformers' Auto classes, when these are imported and not before.

transformers offers no entry points: a model type is known once somebody has called `register`, which needs transformers
and torch. `import formerlab` must not pay for that (`after_import.py`).
"""

from formerlab.after_import import after_import

MODEL_TYPE = "formerlab"


def register_config() -> None:
    """Let `AutoConfig` read our config.json."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from formerlab.huggingface.configuration import FormerlabConfig

    CONFIG_MAPPING.register(MODEL_TYPE, FormerlabConfig, exist_ok=True)


def register_model() -> None:
    """Let `AutoModelForCausalLM` build our models."""
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    from formerlab.huggingface.configuration import FormerlabConfig
    from formerlab.huggingface.modeling import FormerlabForCausalLM

    AutoModelForCausalLM.register(FormerlabConfig, FormerlabForCausalLM, exist_ok=True)


def register_when_imported() -> None:
    """Register our classes as soon as transformers' Auto classes are there; imports neither transformers nor torch."""
    after_import("transformers.models.auto.configuration_auto", register_config)
    after_import("transformers.models.auto.modeling_auto", register_model)
