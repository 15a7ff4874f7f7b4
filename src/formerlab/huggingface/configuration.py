"""config.json of our models: the plain spec, and what others expect to find beside it."""

from typing import Any

from transformers import PreTrainedConfig

from formerlab.huggingface.registration import MODEL_TYPE
from formerlab.models.decoder import Decoder


class FormerlabConfig(PreTrainedConfig):  # type: ignore[misc]
    """The config of a decoder: `spec` says everything; the other sizes repeat it under transformers' names."""

    model_type = MODEL_TYPE
    keys_to_ignore_at_inference = ["past_key_values"]
    has_no_defaults_at_init = False

    def __init__(self, spec: dict[str, Any] | None = None, **others: Any) -> None:
        """Take a plain spec of a `Decoder` (default: its default); sizes among `others` follow from it."""
        decoder = Decoder.model_validate(spec or {})
        self.spec = decoder.plain()
        sizes = {
            "vocab_size": decoder.vocabulary,
            "hidden_size": decoder.width,
            "num_hidden_layers": decoder.layers,
            "num_attention_heads": decoder.heads,
            "num_key_value_heads": decoder.heads,
            "max_position_embeddings": decoder.context,
            "tie_word_embeddings": decoder.tied,
            "is_decoder": True,
        }
        super().__init__(**(others | sizes))

    @property
    def decoder_spec(self) -> Decoder:
        """The spec as a value that builds the model."""
        return Decoder.model_validate(self.spec)
