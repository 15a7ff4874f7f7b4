"""Data parallel training: two processes with half a batch each take the step of one with all of it."""

import pytest
import torch
from tiny_decoder import TIME, perturbed, tiny
from torch import distributed
from torch.multiprocessing import spawn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from variation import defaults

from formerlab.layers import DepthMixer

DEPTHS = defaults(DepthMixer)
TOKENS = torch.arange(4 * TIME).reshape(4, TIME) % 11


def gradients(model, tokens):
    F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    return [parameter.grad for parameter in model.parameters()]


def one_of_two(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for depth in DEPTHS:
        model = DistributedDataParallel(perturbed(tiny(depth=depth)))
        found = gradients(model, TOKENS.chunk(2)[rank])
        if rank == 0:
            torch.save(found, f"{folder}/{depth.kind}.pt")
    distributed.destroy_process_group()


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="torch without gloo")
def test_gradients_are_those_of_the_whole_batch(tmp_path):
    spawn(one_of_two, (str(tmp_path),), nprocs=2)
    for depth in DEPTHS:
        expected = gradients(perturbed(tiny(depth=depth)), TOKENS)
        torch.testing.assert_close(torch.load(tmp_path / f"{depth.kind}.pt"), expected)
