"""Whether a model fits into the memory of the device that it is meant for."""

import psutil
import torch

from formerlab.errors import UserError
from formerlab.progress import short


def check_room(name: str, parameters: int, dtype: torch.dtype, device: str | torch.device) -> None:
    """Raise UserError where a model of `parameters` values of `dtype` exceeds the device's free memory."""
    device = torch.device(device)
    need = parameters * dtype.itemsize
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if need > free:
        raise UserError(
            f"{name}: {short(parameters)} parameters as {str(dtype).removeprefix('torch.')} take {short(need)}B, "
            f"but {device} has {short(free)}B free; choose a smaller --dtype or another --device"
        )
