import torch
from torch import nn

from formerlab.layers import Linear, Pattention
from formerlab.layers.initial import initialise


def pair(**named):
    return nn.ModuleDict(named)


def test_the_same_seed_gives_the_same_values_and_another_seed_others():
    layers = [Linear().build(4, 4) for _ in range(3)]
    for layer, seed in zip(layers, (1, 1, 2), strict=True):
        initialise(layer, seed)
    assert torch.equal(layers[0].weight, layers[1].weight)
    assert not torch.equal(layers[0].weight, layers[2].weight)


def test_values_depend_on_the_place_and_not_on_the_company():
    alone = pair(first=Linear().build(4, 4))
    together = pair(other=Pattention(tokens=3).build(4, 4), first=Linear().build(4, 4), second=Linear().build(4, 4))
    initialise(alone, 0)
    initialise(together, 0)
    assert torch.equal(alone["first"].weight, together["first"].weight)
    assert not torch.equal(together["first"].weight, together["second"].weight)


def test_the_programs_random_numbers_are_left_alone():
    layer = Linear().build(4, 4)
    before = torch.get_rng_state()
    initialise(layer, 0)
    assert torch.equal(torch.get_rng_state(), before)
