"""The numeric checks of the exact claims: arithmetic on the built models, in float64, without training."""

from collections.abc import Callable

from formerlab.evaluation.exact import decay, denseformer, layer_costs, tokenformer, transformer

CHECKS: dict[str, Callable[[], dict[str, float]]] = {
    "transformer-parameter-counts": transformer.parameter_counts,
    "transformer-complexity-table1": layer_costs.complexity,
    "transformer-sinusoid-linear-shift": transformer.sinusoid_linear_shift,
    "transformer-training-flops": dict,  # its expressions hold the numbers
    "tokenformer-parameter-counts": tokenformer.parameter_counts,
    "tokenformer-flops-formula": tokenformer.flops_formula,
    "tokenformer-zero-keys-default-tau": tokenformer.zero_keys_default_tau,
    "tokenformer-zero-keys-kept-tau": tokenformer.zero_keys_kept_tau,
    "tokenformer-scale-invariance": tokenformer.scale_invariance,
    "tokenformer-jacobian-appendix-a": tokenformer.jacobian,
    "vision-parameter-counts": tokenformer.vision_parameter_counts,
    "denseformer-parameter-counts": denseformer.parameter_counts,
    "denseformer-identity-at-start": denseformer.identity_at_start,
    "decay-age-bias-bounded": decay.age_bias,
    "decay-simulation-equals-eviction": decay.simulation_equals_eviction,
    "decay-cache-memory": decay.cache_memory,
}
"""Claim to check. A name `item/name` belongs to an item of for_each, `slope:cost:size` is a slope."""
