import pytest
import torch
from pydantic import ValidationError
from variation import counted_params, label, settings

from formerlab.kernels import rotary_cpu
from formerlab.layers import Learned, Position, Rotary
from formerlab.layers.initial import initialise

every_position = pytest.mark.parametrize("spec", settings(Position), ids=label)
every_rotary = pytest.mark.parametrize(
    "spec", [Rotary(interleaved=flag, fraction=share) for flag in (False, True) for share in (1.0, 0.5)], ids=label
)


def built(spec, context=10, width=16, d_head=8):
    encoding = spec.build(context, width, d_head)
    initialise(encoding, 0)
    return encoding


@every_position
def test_closed_form_equals_what_pytorch_counts(spec):
    assert counted_params(built(spec)) == spec.params(10, 16)


@every_position
def test_starting_late_is_a_part_of_the_whole(spec):
    encoding = built(spec)
    x, q = torch.randn(2, 10, 16), torch.randn(2, 2, 10, 8)
    torch.testing.assert_close(encoding.embed(x[:, 4:7], 4), encoding.embed(x, 0)[:, 4:7])
    torch.testing.assert_close(encoding.rotate(q[:, :, 4:7], 4), encoding.rotate(q, 0)[:, :, 4:7])


@every_position
def test_positions_leave_the_program_state_alone(spec):
    buffers = set(dict(built(spec).named_buffers())) & set(built(spec).state_dict())
    assert buffers == set()


def test_learned_rows_are_added():
    encoding = built(Learned(std=0.3), context=500)
    x = torch.randn(2, 6, 16)
    torch.testing.assert_close(encoding.embed(x, 3) - x, encoding.rows[3:9].expand(2, -1, -1))
    assert encoding.rows.std().item() == pytest.approx(0.3, rel=0.03)


@every_rotary
def test_rotation_keeps_lengths_and_the_unrotated_rest(spec):
    encoding = built(spec)
    q = torch.randn(2, 2, 10, 8)
    turned = encoding.rotate(q, 0)
    torch.testing.assert_close(turned.norm(dim=-1), q.norm(dim=-1))
    rotated = int(8 * spec.fraction)
    assert torch.equal(turned[..., rotated:], q[..., rotated:])
    assert torch.equal(turned[:, :, 0], q[:, :, 0])
    assert not torch.isclose(turned[:, :, 1:, :rotated], q[:, :, 1:, :rotated]).all()


@every_rotary
def test_scores_depend_on_the_distance_alone(spec):
    encoding = built(spec, context=40)
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    scores = [(encoding.rotate(q, start + 5) * encoding.rotate(k, start)).sum() for start in (0, 7, 30)]
    torch.testing.assert_close(torch.stack(scores), scores[0].expand(3), atol=1e-5, rtol=1e-5)


@every_rotary
def test_the_angles_are_those_of_the_formula(spec):
    """Read as complex numbers, pair i of position t turns by exp(1j t base^(-2i/r))."""
    encoding = built(spec)
    rotated = int(8 * spec.fraction)
    q = torch.randn(1, 1, 10, 8)
    pairs = torch.arange(rotated).reshape(-1, 2) if spec.interleaved else torch.arange(rotated).reshape(2, -1).T
    angles = torch.outer(torch.arange(10), 10000.0 ** (-torch.arange(0, rotated, 2) / rotated))
    before = torch.complex(q[..., pairs[:, 0]], q[..., pairs[:, 1]])
    turned = encoding.rotate(q, 0)
    after = torch.complex(turned[..., pairs[:, 0]], turned[..., pairs[:, 1]])
    torch.testing.assert_close(after, before * torch.polar(torch.ones_like(angles), angles))


@every_rotary
def test_the_gradient_is_the_rotation_back(spec):
    encoding = built(spec)
    encoding.cosine, encoding.sine = encoding.cosine.double(), encoding.sine.double()
    q = torch.randn(2, 3, 2, 8, dtype=torch.float64).transpose(1, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda q: encoding.rotate(q, 4), q)
    assert torch.autograd.gradgradcheck(lambda q: encoding.rotate(q, 4), q)


@every_rotary
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_native_kernel_rotates_as_torch_does(spec, dtype, monkeypatch):
    """Forward and backward, wherever the heads lie in memory, on one thread and on two."""
    encoding = built(spec)
    heads = torch.randn(2, 5, 3, 8).to(dtype)
    for q in (heads.transpose(1, 2), heads.permute(0, 2, 1, 3).contiguous(), heads[:, ::2].transpose(1, 2)):
        found = rotated_and_back(encoding, q)
        torch.set_num_threads(2)
        assert all(map(torch.equal, found, rotated_and_back(encoding, q)))
        with monkeypatch.context() as patch:
            patch.setattr(rotary_cpu, "_library", lambda: None)
            for got, wanted in zip(found, rotated_and_back(encoding, q), strict=True):
                assert got.dtype == dtype
                assert (got - wanted).norm() <= 4 * torch.finfo(dtype).eps * wanted.norm()


def rotated_and_back(encoding, q):
    q = q.detach().requires_grad_()
    turned = encoding.rotate(q, 2)
    (gradient,) = torch.autograd.grad(turned.square().sum(), q)
    return turned.detach(), gradient


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5])
def test_a_share_of_channels_lies_between_0_and_1(fraction):
    with pytest.raises(ValidationError, match="fraction"):
        Rotary(fraction=fraction)
