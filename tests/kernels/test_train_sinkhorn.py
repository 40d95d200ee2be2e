"""The training kernel of the residual mix gives what the definition's loop gives, both ways."""

import torch
from train_tiny.operations import mix_split
from train_tiny.sinkhorn import sinkhorn

from diptych.model import mhc
from diptych.model.mhc import MixWeights
from diptych.model.spec import ModelSpec
from diptych.supervisor.checkpoint import embedded_folder


def test_a_mix_and_its_gradients_are_those_of_the_definition() -> None:
    spec = ModelSpec.load(embedded_folder())
    random = torch.Generator().manual_seed(0)
    mixes = spec.streams * (spec.streams + 2)
    base, scale = torch.randn(mixes, generator=random), torch.rand(3, generator=random) + 0.5
    weights = MixWeights(torch.empty(0), base, scale)
    scores = torch.randn(100, mixes, generator=random)
    results = []
    for split in (mhc.split, mix_split(sinkhorn)):
        x = scores.clone().requires_grad_()
        mix = split(weights, spec, x)
        wanted = torch.randn(mix.comb.shape, generator=torch.Generator().manual_seed(1))
        ((mix.comb * wanted).sum() + mix.pre.sum() + mix.post.square().sum()).backward()
        assert x.grad is not None
        results.append((mix.pre, mix.post, mix.comb, x.grad))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
