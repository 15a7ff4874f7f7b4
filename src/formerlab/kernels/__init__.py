"""GPU kernels, each beside the formula that it computes; without Triton or a GPU nothing here is imported."""
