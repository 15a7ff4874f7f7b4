"""The checkpoint of a run whose tensors are split over processes: a folder that stands where a whole run has a file.

It holds safetensors, a file per process, which torch's distributed checkpoints write and read, and `rest.pt` with all
that is no part of a tensor: counts, rows, steps of the optimizer. It is restored on any number of processes, also on a
single one that splits nothing, and so is the file of a whole run where all is split.
"""

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from formerlab.errors import UserError
from formerlab.files import NoRoom, found_no_room, replacing
from formerlab.training import parallel
from formerlab.training.state import State

REST = "rest.pt"
PARTS = "parts"
"""Key under which the content of a checkpoint names the folder that holds its tensors."""
Content = dict[str, Any]


def save_parts(folder: Path, state: State, belongs_to: dict[str, str]) -> None:
    """Write a checkpoint into an empty folder, every process its own parts; all wait for each other.

    Raises
    ------
    NoRoom
        Where the disk is full.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    if parallel.rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    parallel.wait_for_all()
    content = state.dump()
    tensors = _tensors(content)
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        save(dict(tensors), storage_writer=writer)
    except CheckpointException as error:
        reason = next(iter(error.failures.values()))[0]
        if found_no_room(reason):
            raise NoRoom(folder) from None
        raise
    if parallel.rank() == 0:
        rest = _without(content, tensors)
        with replacing(folder / REST) as temporary:
            torch.save({"belongs_to": belongs_to, "processes": parallel.count(), "state": rest}, temporary)


def find_damage(folder: Path, processes: int) -> str | None:
    """Return what of the parts that `processes` processes wrote is missing or cut short, if anything is."""
    files = sorted(folder.glob("*.safetensors"))
    if len(files) != processes:
        return f"{len(files)} of {processes} files of parts"
    for file in files:
        try:
            with safe_open(file, "pt"):
                pass
        except (SafetensorError, OSError) as error:
            return f"{file.name}: {error}"
    return None


def restore(state: State, content: Content) -> None:
    """Take over a checkpoint of either form into a state whose tensors are split; all processes take part."""
    if PARTS not in content:
        _split_like(state, content)
    else:
        tensors: dict[str, Any] = {}
        weights, parameters = state.model.state_dict(), _parameters(state)
        for name in _sizes(content[PARTS]):
            kind, _, place = name.partition("/")
            tensors[name] = weights[place] if kind == "model" else torch.zeros_like(parameters[_index(place)])
        _read(content[PARTS], tensors)
        content = _with(content, tensors)
    state.restore(content)


def in_one_piece(content: Content) -> Content:
    """Return the content of a checkpoint with all of its tensors whole, read by this process alone."""
    if PARTS not in content:
        return content
    tensors: dict[str, Any] = {
        name: torch.empty(size, dtype=dtype) for name, (size, dtype) in _sizes(content[PARTS]).items()
    }
    _read(content[PARTS], tensors, alone=True)
    return _with(content, tensors)


def _read(folder: str, tensors: dict[str, Any], *, alone: bool = False) -> None:
    """Fill the tensors from the files of a folder."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of being alone
            load(tensors, storage_reader=HuggingFaceStorageReader(folder), no_dist=alone)
    except CheckpointException as error:
        reason = next(iter(error.failures.values()))[0]
        raise UserError(f"{folder}: broken ({reason}); delete it to train from the one before it") from None


def _sizes(folder: str) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return size and type of every tensor of which a folder holds the parts."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    found: dict[str, Any] = HuggingFaceStorageReader(folder).read_metadata().state_dict_metadata
    return {name: (one.size, one.properties.dtype) for name, one in found.items()}


def _tensors(content: Content) -> dict[str, Tensor]:
    """Return the split tensors of a state's dump by their place in it: model/<name>, optimizer/<index>/<name>."""
    from torch.distributed.tensor import DTensor

    named = {f"model/{name}": weight for name, weight in content["model"].items()}
    for index, moments in content["optimizer"]["state"].items():
        named |= {f"optimizer/{index}/{name}": value for name, value in moments.items()}
    return {name: value for name, value in named.items() if isinstance(value, DTensor)}


def _without(content: Content, tensors: dict[str, Tensor]) -> Content:
    """Return the dump without these tensors."""
    model = {name: value for name, value in content["model"].items() if f"model/{name}" not in tensors}
    moments = {
        index: {name: value for name, value in held.items() if f"optimizer/{index}/{name}" not in tensors}
        for index, held in content["optimizer"]["state"].items()
    }
    return content | {"model": model, "optimizer": content["optimizer"] | {"state": moments}}


def _with(content: Content, tensors: dict[str, Any]) -> Content:
    """Return the dump with these tensors in their places."""
    model = dict(content["model"])
    moments = {index: dict(held) for index, held in content["optimizer"]["state"].items()}
    for name, value in tensors.items():
        kind, _, place = name.partition("/")
        if kind == "model":
            model[place] = value
        else:
            moments[_index(place)][place.partition("/")[2]] = value
    return content | {"model": model, "optimizer": content["optimizer"] | {"state": moments}}


def _split_like(state: State, content: Content) -> None:
    """Put parts in the place of the whole tensors of a checkpoint."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    def parts(whole: Tensor, like: Tensor) -> Tensor:
        if not isinstance(like, DTensor) or whole.shape != like.shape:
            return whole
        return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements)

    weights, parameters = state.model.state_dict(), _parameters(state)
    content["model"] = {name: parts(whole, weights[name]) for name, whole in content["model"].items()}
    for index, held in content["optimizer"]["state"].items():
        held.update({name: parts(whole, parameters[index]) for name, whole in held.items()})


def _parameters(state: State) -> list[Tensor]:
    """Return the parameters in the order in which the optimizer counts them."""
    return [parameter for group in state.optimizer.param_groups for parameter in group["params"]]


def _index(place: str) -> int:
    return int(place.partition("/")[0])
