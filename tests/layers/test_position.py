import pytest
import torch
from variation import label, settings

from formerlab.kernels import rotary_cpu
from formerlab.layers import Position, Rotary
from formerlab.layers.initialization import initialise

every_position = pytest.mark.parametrize("spec", settings(Position), ids=label)
ROTARY = [Rotary(interleaved=pairs, fraction=fraction) for pairs in (False, True) for fraction in (1.0, 0.5)]
every_rotary = pytest.mark.parametrize("spec", ROTARY, ids=label)


def built(spec, context=10, width=16, d_head=8):
    encoding = spec.build(context, width, d_head)
    initialise(encoding, 0)
    return encoding


@every_position
def test_a_later_start_gives_a_slice_of_all_positions(spec):
    encoding = built(spec)
    x, q = torch.randn(2, 10, 16), torch.randn(2, 2, 10, 8)
    torch.testing.assert_close(encoding.embed(x[:, 4:7], 4), encoding.embed(x, 0)[:, 4:7])
    torch.testing.assert_close(encoding.rotate(q[:, :, 4:7], 4), encoding.rotate(q, 0)[:, :, 4:7])


def test_positions_beyond_the_context_are_refused():
    encoding = built(Rotary(), context=8)
    for start, time in ((0, 9), (8, 1)):
        with pytest.raises(ValueError, match="9 positions exceed the context of 8"):
            encoding.rotate(torch.randn(1, 1, time, 8), start)


@every_rotary
def test_rotations_match_the_formula(spec):
    """Pair i at position t, as a complex number, is multiplied by exp(1j t base^(-2i/r))."""
    encoding = built(spec)
    rotated = int(8 * spec.fraction)
    q = torch.randn(1, 1, 10, 8)
    pairs = torch.arange(rotated).reshape(-1, 2) if spec.interleaved else torch.arange(rotated).reshape(2, -1).T
    angles = torch.outer(torch.arange(10), 10000.0 ** (-torch.arange(0, rotated, 2) / rotated))
    rotated_q = encoding.rotate(q, 0)
    inputs, outputs = (torch.complex(x[..., pairs[:, 0]], x[..., pairs[:, 1]]) for x in (q, rotated_q))
    torch.testing.assert_close(outputs, inputs * torch.polar(torch.ones_like(angles), angles))


@every_rotary
def test_the_gradient_is_the_inverse_rotation(spec):
    encoding = built(spec)
    encoding.cosine, encoding.sine = encoding.cosine.double(), encoding.sine.double()
    q = torch.randn(2, 3, 2, 8, dtype=torch.float64).transpose(1, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda q: encoding.rotate(q, 4), q)
    assert torch.autograd.gradgradcheck(lambda q: encoding.rotate(q, 4), q)


@every_rotary
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_native_kernel_matches_torch(spec, dtype, monkeypatch):
    """The test covers both passes for several memory layouts of the heads, with one and two threads."""
    encoding = built(spec)
    heads = torch.randn(2, 5, 3, 8).to(dtype)
    for q in (heads.transpose(1, 2), heads.permute(0, 2, 1, 3).contiguous(), heads[:, ::2].transpose(1, 2)):
        native = output_and_gradient(encoding, q)
        torch.set_num_threads(2)
        assert all(map(torch.equal, native, output_and_gradient(encoding, q)))
        with monkeypatch.context() as patch:
            patch.setattr(rotary_cpu, "_library", lambda: None)
            for actual, expected in zip(native, output_and_gradient(encoding, q), strict=True):
                assert actual.dtype == dtype
                assert (actual - expected).norm() <= 4 * torch.finfo(dtype).eps * expected.norm()


def output_and_gradient(encoding, q):
    q = q.detach().requires_grad_()
    rotated = encoding.rotate(q, 2)
    (gradient,) = torch.autograd.grad(rotated.square().sum(), q)
    return rotated.detach(), gradient
