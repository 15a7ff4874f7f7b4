"""The models; `Model` is the union that configurations choose from."""

from formerlab.models.decoder import Decoder

Model = Decoder

__all__ = ["Decoder", "Model"]
