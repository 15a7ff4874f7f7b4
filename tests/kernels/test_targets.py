"""The kernels compile to machine code for the supported GPUs, without a GPU."""

import os
import re
import subprocess
from functools import partial
from itertools import product

import pytest
import torch
from pruning import with_warps

from formerlab.cache import Decay, Knorm
from formerlab.cache.policies.policy import Prompt

TARGETS = (80, 90, 100)
"""Compute capabilities times ten: A100, H100, B200."""
ALL = os.environ.get("FORMERLAB_ALL_TARGETS") == "1"
"""Whether to test every combination of target, dtype and size.

By default each target and each dtype is tested at least once, at size SMALL or LARGE.
"""

TYPES = torch.float32, torch.bfloat16, torch.float16


class Driver:
    """A fake GPU driver."""

    def __init__(self, capability):
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return self.target.arch

    def get_current_stream(self, device):
        return 0


@pytest.fixture
def built(triton, monkeypatch, tmp_path):
    """Return the function `compiled(capability, function, *arguments)`.

    It calls `function` and returns its kernels, compiled for `capability` without launching them.
    """
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    launch, kernels = JITFunction.run, []
    active = "_active" if hasattr(driver, "_active") else "active"  # Triton before 3.5 has only `active`

    def build(kernel, *arguments, warmup, **options):
        kernels.append(launch(kernel, *arguments, warmup=True, **options))

    def compiled(capability, function, *arguments):
        monkeypatch.setattr(driver, active, Driver(capability))
        kernels.clear()
        function(*arguments)
        return list(kernels)

    monkeypatch.setattr(JITFunction, "run", build)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return compiled


def check(kernels, capability, dtype):
    (kernel,) = kernels
    assert f".target sm_{capability}" in kernel.asm["ptx"]
    assert kernel.asm["cubin"][:4] == b"\x7fELF"
    # 99 KiB is the limit per block of sm_86 and sm_89, so that the kernels also fit consumer GPUs
    assert kernel.metadata.shared <= 99 * 1024
    limit = 160 if dtype == torch.float32 else 80  # bytes; float32 products do not use tensor cores
    assert spilled(kernel.asm["ptx"], capability) <= limit


def spilled(ptx, capability):
    """Return the bytes of spilled registers of a kernel, from NVIDIA's assembler."""
    from triton import knobs

    # Triton 3.6 and later have a separate ptxas for Blackwell
    blackwell = getattr(knobs.nvidia, "ptxas_blackwell", knobs.nvidia.ptxas)
    tool = knobs.nvidia.ptxas if capability < 100 else blackwell
    name = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)[1]
    command = [tool.path, "--verbose", f"--gpu-name={name}", "--output-file=/dev/null", "-"]
    output = subprocess.run(command, input=ptx, capture_output=True, text=True, check=True).stderr
    threads = int(re.search(r"^\.reqntid (\d+)", ptx, re.MULTILINE)[1])
    assert threads * int(re.search(r"Used (\d+) registers", output)[1]) <= 2**16, "a GPU cannot launch the kernel"
    return sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", output)))


def pruned_attention(policy, dtype, heads, key_heads, time, d_head):
    from formerlab.cache import triton_engine

    q, k, v = (torch.zeros(1, time, number, d_head, dtype=dtype).transpose(1, 2) for number in (heads, key_heads, 1))
    triton_engine.run(policy, Prompt(q, k, v.expand_as(k), [int(0.4 * time)], [time]))


SMALL, LARGE = (2, 2, 130, 16), (4, 2, 1024, 64)
PRUNED = {
    80: [(Knorm(), torch.float32, *SMALL)],
    90: [(Decay(), torch.bfloat16, *LARGE)],
    100: [(Decay(scope="layer"), torch.float16, *SMALL)],
}
POLICIES = Decay(), Knorm()
SIZES = SMALL, LARGE, (2, 2, 2048, 128), (8, 1, 4096, 80)


@pytest.mark.parametrize("capability", TARGETS)
def test_pruned_attention_compiles_for_all_targets(built, capability):
    cases = [(policy, dtype, *size) for policy, dtype, size in product(POLICIES, TYPES, SIZES)]
    for case in cases if ALL else PRUNED[capability]:
        check(built(capability, pruned_attention, *case), capability, case[1])


@pytest.mark.parametrize("warps", [8, 16])
def test_pruned_attention_compiles_with_the_warp_counts_of_the_benchmark(built, warps):
    case = pruned_attention, Decay(), torch.bfloat16, 4, 2, 256, 80
    check(built(90, with_warps(warps, partial(*case))), 90, torch.bfloat16)


def test_pruned_attention_is_compiled_once_for_all_lengths_and_heads(built):
    sizes = (2, 2, 130, 16), (16, 16, 160, 16)
    (first,), (second,) = (built(90, pruned_attention, Decay(), torch.bfloat16, *size) for size in sizes)
    assert first.hash == second.hash
