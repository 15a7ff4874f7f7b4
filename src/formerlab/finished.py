"""The model of a finished run."""

from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from formerlab.errors import UserError
from formerlab.models.decoder import DecoderModel
from formerlab.models.translator_model import TranslatorModel
from formerlab.run import Run
from formerlab.training.record import load_record


def load_model(folder: Path) -> tuple[nn.Module, Run]:
    """Return the final model of a finished run, ready to evaluate, and the run."""
    run = Run.model_validate(load_record(folder)["spec"])
    model = run.model.build(run.seed)
    model.load_state_dict(load_file(folder / "weights.safetensors"))
    return model.eval(), run


def load_decoder(folder: Path) -> tuple[DecoderModel, Run]:
    """Return the final model of a finished run that trained a decoder, and the run."""
    model, run = load_model(folder)
    if not isinstance(model, DecoderModel):
        raise UserError(
            f"{folder}: a {run.model.kind}, but only a decoder can do this; name a run of language modelling"
        )
    return model, run


def load_translator(folder: Path) -> tuple[TranslatorModel, Run]:
    """Return the final model of a finished run that trained a translator, and the run."""
    model, run = load_model(folder)
    if not isinstance(model, TranslatorModel):
        raise UserError(f"{folder}: a {run.model.kind}, but only a translator can do this; name a run of translation")
    return model, run
