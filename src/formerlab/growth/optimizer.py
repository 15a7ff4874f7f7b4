"""What becomes of the optimizer when a Tokenformer grows: its moments, and how fast old parameter tokens move."""

from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

OldTokens = Literal["train", "freeze"] | Annotated[float, Field(gt=0.0, lt=1.0)]


def grow_optimizer_state(parent_state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return a parent's AdamW state dict, its moments extended by zero rows, for `optimizer.load_state_dict`.

    `optimizer` is the child's, over the same parameters in the same groups; its learning rates and other settings stay
    its own. The step count is one number per tensor and is kept, so the old rows go on as if nothing had happened,
    while the first update of a new entry is lr (1 - beta1) / sqrt(1 - beta2) in size, and not lr.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        index: {name: _extended(value, parameters[index]) for name, value in moments.items()}
        for index, moments in parent_state["state"].items()
    }
    return {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}


def _extended(value: Tensor, parameter: Tensor) -> Tensor:
    if value.ndim == 0:
        return value.clone()  # the optimizer counts steps in place, and loading keeps the tensor
    extended = torch.zeros(parameter.shape, dtype=value.dtype, device=value.device)
    extended[: len(value)] = value
    return extended


def hold_old_tokens(
    optimizer: torch.optim.Optimizer, model: nn.Module, parent_state: dict[str, Tensor], old_tokens: OldTokens
) -> None:
    """Make the optimizer move the rows of keys and values that `parent_state` has already as `old_tokens` says.

    A number multiplies the whole update of old rows, decay included, which is exactly AdamW at that part of the
    learning rate: the moments are those of the plain gradient. "freeze" gives old rows no gradient, so they do not
    enter the gradient's norm and their moments fade, and no update, not even decay: they keep their bits. Nothing is
    added to the state of the optimizer: an interrupted run calls this again, and goes on the same.
    """
    if old_tokens == "train":
        return
    rows = {
        parameter: len(parent_state[name])
        for name, parameter in model.named_parameters()
        if name.rpartition(".")[2] in ("keys", "values")
    }
    before: dict[nn.Parameter, Tensor] = {}

    def remember(*_: object) -> None:
        before.update({parameter: parameter.detach()[:old].clone() for parameter, old in rows.items()})

    def shorten(*_: object) -> None:
        for parameter, old in rows.items():
            start, moved = before[parameter], parameter.detach()[:old]
            moved.copy_(start if old_tokens == "freeze" else torch.lerp(start, moved, old_tokens))

    optimizer.register_step_pre_hook(remember)
    optimizer.register_step_post_hook(shorten)
    if old_tokens == "freeze":
        for parameter, old in rows.items():
            hook = partial(_without_gradient, old)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


def _without_gradient(old: int, parameter: Tensor) -> None:
    if parameter.grad is not None:
        parameter.grad[:old] = 0.0
