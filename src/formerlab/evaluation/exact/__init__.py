"""Numeric checks of the exact claims on untrained models."""

from collections.abc import Callable
from functools import partial

from formerlab.evaluation.exact import counts, identities

CHECKS: dict[str, Callable[[], dict[str, float]]] = {
    "transformer-parameter-counts": counts.transformer_parameters,
    "transformer-complexity-table1": counts.complexity,
    "transformer-sinusoid-linear-shift": identities.sinusoid_linear_shift,
    "transformer-training-flops": dict,  # the expressions of the claim contain all numbers
    "tokenformer-parameter-counts": counts.tokenformer_parameters,
    "tokenformer-flops-formula": counts.tokenformer_flops,
    "tokenformer-zero-keys-default-tau": partial(identities.zero_keys, "sqrt"),
    "tokenformer-zero-keys-kept-tau": partial(identities.zero_keys, "keep"),
    "tokenformer-scale-invariance": identities.scale_invariance,
    "tokenformer-jacobian-appendix-a": identities.jacobian,
    "vision-parameter-counts": counts.vision_parameters,
    "denseformer-parameter-counts": counts.denseformer_parameters,
    "denseformer-identity-at-start": identities.averages_at_start,
    "decay-age-bias-bounded": identities.age_bias,
    "decay-simulation-equals-eviction": identities.simulation_equals_eviction,
    "decay-cache-memory": counts.cache_memory,
}
"""The check of each claim, by claim id. It returns values by name, or by `item/name` if the claim has a `for_each`
list."""
