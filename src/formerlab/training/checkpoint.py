"""The checkpoint of a run in progress: replaced whole, and it says which run it belongs to.

It is a file; where tensors are split over processes, a folder stands in its place. That holds safetensors, a file per
process, which torch's distributed checkpoints write and read, and `rest.pt` with all that is no split tensor. Either
form is restored on any number of processes, split or not. The checkpoint before the last is kept beside it, for the day
on which a disk gives back something else than was written.
"""

import os
import shutil
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from formerlab.errors import UserError
from formerlab.files import NoRoom, found_no_room, replacing
from formerlab.training import processes
from formerlab.training.state import State

Content = dict[str, Any]
REMEDY = "delete it to train from the start"
REST = "rest.pt"
PARTS = "parts"
"""Key under which the content of a checkpoint names the folder that holds its tensors."""


class DamagedFile(UserError):
    """A file does not hold what was written into it."""


def previous(path: Path) -> Path:
    """Return where the checkpoint before that at `path` is kept."""
    return path.with_name(f"previous{path.suffix}")


def save(path: Path, state: State, belongs_to: dict[str, str]) -> None:
    """Write a checkpoint of the state; where tensors are split all processes do, else the first."""
    if processes.sharded():
        folder = path.with_name(f".{path.name}.parts.tmp")
        _save_parts(folder, state.dump(), belongs_to)
        if processes.rank() == 0:
            _keep_before(path)
            folder.rename(path)
        processes.wait_for_all()
    elif processes.rank() == 0:
        save_checkpoint(path, state.dump(), belongs_to)


def save_checkpoint(path: Path, content: Content, belongs_to: dict[str, str]) -> None:
    """Write a checkpoint in one file; the one before it stays, whole.

    Raises
    ------
    NoRoom
        Where the disk is full; the checkpoints that exist are untouched.
    """
    with replacing(path) as temporary:
        torch.save({"belongs_to": belongs_to, "state": content}, temporary)
        _keep_before(path)


def _save_parts(folder: Path, content: Content, belongs_to: dict[str, str]) -> None:
    """Write a checkpoint into an empty folder, every process its own parts; all wait for each other."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save
    from torch.distributed.tensor import DTensor

    if processes.rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    processes.wait_for_all()
    split: dict[str, Any] = {}

    def rest(place: str, value: Any) -> Any:
        if isinstance(value, DTensor):
            split[place] = value
            return None
        return value

    whole = _each(content, rest)
    try:
        save(split, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        if found_no_room(next(iter(error.failures.values()))[0]):
            raise NoRoom(folder) from None
        raise
    if processes.rank() == 0:
        with replacing(folder / REST) as temporary:
            torch.save({"belongs_to": belongs_to, "processes": processes.count(), "state": whole}, temporary)


def _keep_before(path: Path) -> None:
    """Keep the checkpoint at `path`, if there is one, as the one before the next."""
    if path.exists():
        if path.is_dir() or previous(path).is_dir():
            remove(previous(path))
        os.replace(path, previous(path))


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def load_checkpoint(path: Path, belongs_to: dict[str, str]) -> Content:
    """Read a checkpoint of exactly this run (same spec, data, code and initial weights).

    Where the file is damaged or missing, the one before it is read, and that is said.

    Raises
    ------
    UserError
        Where no whole one is left, or it belongs to something else; the message names what differs.
    """
    before = previous(path)
    if not before.exists():
        return _load(path, belongs_to)
    if not path.exists():  # a process was killed between the two renamings of a save
        return _load(before, belongs_to)
    try:
        return _load(path, belongs_to)
    except DamagedFile as error:
        content = _load(before, belongs_to)
        print(f"{error}; going on from the one before it, {before.name}", file=sys.stderr)
        return content


def _load(path: Path, belongs_to: dict[str, str]) -> Content:
    content = _load_rest(path) if path.is_dir() else load_tensors(path, {"belongs_to", "state"}, REMEDY)
    differing = differences(content["belongs_to"], belongs_to)
    if differing:
        raise UserError(
            f"{path}: checkpoint of another run ({differing}); "
            "go on with --on-mismatch restart, which keeps it as checkpoint.superseded"
        )
    return dict(content["state"])


def _load_rest(folder: Path) -> Content:
    """Read what a folder holds beside the parts, which are only looked at."""
    content = load_tensors(folder / REST, {"belongs_to", "processes", "state"}, f"delete {folder.name}: {REMEDY}")
    files = sorted(folder.glob("*.safetensors"))
    damage = "" if len(files) == content["processes"] else f"{len(files)} of {content['processes']} files of parts"
    for file in files:
        try:
            with safe_open(file, "pt"):
                pass
        except (SafetensorError, OSError) as error:
            damage = damage or f"{file.name}: {error}"
    if damage:
        raise DamagedFile(f"{folder}: broken ({damage}); {REMEDY}")
    content["state"][PARTS] = str(folder)
    return content


def load_tensors(path: Path, keys: set[str], remedy: str) -> Content:
    """Read a mapping with these keys that `torch.save` wrote, tensors and plain values only.

    Tensors are mapped, so that processes which read one file hold it once; its checksums are tested before.

    Raises
    ------
    DamagedFile
        Where there is no whole file of that kind.
    """
    try:
        with zipfile.ZipFile(path) as file:
            if damaged := file.testzip():
                raise zipfile.BadZipFile(f"checksum of {damaged}")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # what a damaged file makes of the reader is anybody's guess
        reason = (str(error) or type(error).__name__).partition("\n")[0].partition(". ")[0]
        raise DamagedFile(f"{path}: broken ({reason}); {remedy}") from None
    if not isinstance(content, dict) or content.keys() != keys:
        raise DamagedFile(f"{path}: broken (holds no {' and '.join(sorted(keys))}); {remedy}")
    return content


def differences(found: dict[str, str], wanted: dict[str, str]) -> str:
    """Say in which of spec, data, code and initial weights two runs differ; nothing where they are the same."""
    return ", ".join(
        f"{key} {found.get(key)} there, {wanted.get(key)} here"
        for key in sorted(found | wanted)
        if found.get(key) != wanted.get(key)
    )


def restore(state: State, content: Content) -> None:
    """Take over a checkpoint of either form, whole or split as the state is; all processes take part."""
    weights = state.model.state_dict()
    parameters = [parameter for group in state.optimizer.param_groups for parameter in group["params"]]

    def like(place: str) -> Tensor:
        kind, name = place.split("/", 1)
        found: Tensor = weights[name] if kind == "model" else parameters[int(name.partition("/")[0])]
        return found

    if PARTS in content:
        tensors = {
            place: torch.zeros_like(like(place)) if processes.sharded() else torch.empty(size, dtype=dtype)
            for place, (size, dtype) in _sizes(content[PARTS]).items()
        }
        _read(content[PARTS], tensors)
        content = _each(content, lambda place, value: tensors.get(place, value))
    elif processes.sharded():
        content = _each(content, lambda place, value: _part(value, like(place)))
    state.restore(content)


def _each(content: Content, of: Callable[[str, Any], Any]) -> Content:
    """Return a state's dump with of(place, value) for its tensors: model/<name>, optimizer/<index>/<name>."""
    model = {name: of(f"model/{name}", value) for name, value in content["model"].items()}
    moments = {
        index: {name: of(f"optimizer/{index}/{name}", value) for name, value in held.items()}
        for index, held in content["optimizer"]["state"].items()
    }
    return content | {"model": model, "optimizer": content["optimizer"] | {"state": moments}}


def _part(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this process's part of a whole tensor, split as another of its shape is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


def _sizes(folder: str) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return size and type of every tensor of which a folder holds the parts."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    found: dict[str, Any] = HuggingFaceStorageReader(folder).read_metadata().state_dict_metadata
    return {name: (one.size, one.properties.dtype) for name, one in found.items()}


def _read(folder: str, tensors: dict[str, Any]) -> None:
    """Fill the tensors from the files of a folder."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of being alone
            load(tensors, storage_reader=HuggingFaceStorageReader(folder), no_dist=not processes.sharded())
    except CheckpointException as error:
        reason = next(iter(error.failures.values()))[0]
        raise UserError(f"{folder}: broken ({reason}); delete it to train from the one before it") from None
