"""The optimizer of a grown model: AdamW's moments, and the learning rate of old parameter tokens."""

from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

OldTokens = Literal["train", "freeze"] | Annotated[float, Field(gt=0.0, lt=1.0)]


def grow_optimizer_state(parent_state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return a parent's AdamW state dict with rows of zeros for new tokens, for `optimizer.load_state_dict`.

    `optimizer` is the child's optimizer, with the same parameters in the same groups as the parent's. Its learning
    rates and other settings are returned unchanged. AdamW counts steps per tensor, and the child continues these
    counts. For equal gradients, old rows therefore have the same updates as in the parent. The first update of a new
    row has size lr (1 - beta1) / sqrt(1 - beta2) instead of lr.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        index: {name: _extended(value, parameters[index]) for name, value in moments.items()}
        for index, moments in parent_state["state"].items()
    }
    return {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}


def _extended(value: Tensor, parameter: Tensor) -> Tensor:
    if value.ndim == 0:
        return value.clone()  # the optimizer counts steps in place, and load_state_dict does not copy
    extended = torch.zeros(parameter.shape, dtype=value.dtype, device=value.device)
    extended[: len(value)] = value
    return extended


def limit_old_tokens(
    optimizer: torch.optim.Optimizer, model: nn.Module, parent_state: dict[str, Tensor], old_tokens: OldTokens
) -> None:
    """Register hooks that apply `old_tokens` to the rows of keys and values that exist in `parent_state`.

    A number scales the whole update of old rows, with its weight decay. This equals AdamW with the learning rate of
    these rows scaled. "freeze" sets the gradients of old rows to zero, so that the gradient norm excludes them, and
    restores the rows after every step. State dicts do not contain the hooks; call this function again after resuming.
    """
    if old_tokens == "train":
        return
    old_counts = {
        parameter: len(parent_state[name])
        for name, parameter in model.named_parameters()
        if name.rpartition(".")[2] in ("keys", "values")
    }
    old_rows: dict[nn.Parameter, Tensor] = {}

    def copy_rows(*_: object) -> None:
        old_rows.update({parameter: parameter.detach()[:count].clone() for parameter, count in old_counts.items()})

    def scale_update(*_: object) -> None:
        for parameter, count in old_counts.items():
            start, updated = old_rows[parameter], parameter.detach()[:count]
            updated.copy_(start if old_tokens == "freeze" else torch.lerp(start, updated, old_tokens))

    optimizer.register_step_pre_hook(copy_rows)
    optimizer.register_step_post_hook(scale_update)
    if old_tokens == "freeze":
        for parameter, count in old_counts.items():
            hook = partial(_zero_old_gradients, count)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


def _zero_old_gradients(old_count: int, parameter: Tensor) -> None:
    if parameter.grad is not None:
        parameter.grad[:old_count] = 0.0
