"""Advantage, loss and masks: properties, and the gradient against finite differences."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed: requirements-train.txt")

import da_grpo  # noqa: E402
from da_grpo import Objective, Totals, da_grpo_loss, group_advantages  # noqa: E402
from training.options import AGGREGATIONS  # noqa: E402

SETTINGS = settings(max_examples=60, deadline=None)
LOGP = st.one_of(st.floats(-30, 0), st.just(-math.inf))
REWARD = st.one_of(st.floats(0, 1), st.just(0.1), st.just(math.nan))


@st.composite
def batches(draw: Any) -> tuple[Any, ...]:
    """(logps, old, ref, sampler) (N, T), lengths (N,), advantages (N,): any, also N = 1, T = 1."""
    n, t = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    row = st.lists(LOGP, min_size=t, max_size=t)
    table = st.lists(row, min_size=n, max_size=n)
    four = [torch.tensor(draw(table), dtype=torch.float64) for _ in range(4)]
    lengths = torch.tensor(draw(st.lists(st.integers(0, t), min_size=n, max_size=n)))
    advantages = draw(st.lists(st.floats(-3, 3), min_size=n, max_size=n))
    return (
        *four,
        (torch.arange(t)[None] < lengths[:, None]).double(),
        torch.tensor(advantages).double(),
    )


@SETTINGS
@given(batches(), st.sampled_from(AGGREGATIONS), st.sampled_from([0.0, 0.01]))
def test_neither_loss_nor_gradient_is_ever_nan(batch: Any, how: str, beta: float) -> None:
    logps, old, ref, sampler, mask, advantages = batch
    logps.requires_grad_()
    totals = Totals(len(mask), float(mask.sum()))
    weights = da_grpo.importance(old, sampler, 2.0)
    settings = Objective(beta=beta, aggregation=how)
    loss, sums = da_grpo_loss(logps, old, ref, advantages, mask, settings, totals, weights)
    loss.backward()
    assert math.isfinite(loss.item()) and logps.grad.isfinite().all()
    assert all(math.isfinite(v) and v >= 0 for v in sums.values())
    assert (logps.grad[mask == 0] == 0).all()


@SETTINGS
@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_advantages_are_finite_and_sum_to_nothing(p: int, g: int, data: Any) -> None:
    rows = data.draw(st.lists(st.lists(REWARD, min_size=g, max_size=g), min_size=p, max_size=p))
    rewards = torch.tensor(rows)
    advantages, informative = group_advantages(rewards)
    assert advantages.isfinite().all()
    assert (advantages[rewards.isnan()] == 0).all()
    assert (advantages[~informative] == 0).all()
    torch.testing.assert_close(advantages.sum(1), torch.zeros(p), atol=1e-3, rtol=0)


def test_a_group_of_one_and_a_group_of_equals_teach_nothing() -> None:
    assert group_advantages(torch.tensor([[0.7]]))[1].tolist() == [False]
    assert group_advantages(torch.full((1, 8), 0.1))[1].tolist() == [False]
    assert group_advantages(torch.tensor([[0.5, 0.55]]), min_std=0.1)[1].tolist() == [False]


def test_the_advantage_is_the_distance_from_the_mean_in_deviations() -> None:
    advantages, informative = group_advantages(torch.tensor([[0.0, 1.0]]), epsilon=0.0)
    torch.testing.assert_close(advantages, torch.tensor([[-1.0, 1.0]]) / math.sqrt(2))
    assert informative.tolist() == [True]


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("beta", [0.0, 0.01, 1.0])
def test_the_gradient_is_that_of_finite_differences(how: str, beta: float) -> None:
    g = torch.Generator().manual_seed(3)
    shape = (4, 5)
    old, ref, sampler = (-torch.rand(shape, generator=g).double() for _ in range(3))
    logps = (
        old + 0.1 * torch.randn(shape, generator=g)
    ).requires_grad_()  # inside and past the clip
    mask = (torch.rand(shape, generator=g) > 0.3).double()
    advantages = torch.randn(4, generator=g).double()
    weights = da_grpo.importance(old, sampler, 2.0)
    totals, objective = Totals(4, float(mask.sum())), Objective(0.1, 0.15, beta, how)

    def loss(x: Any) -> Any:
        return da_grpo_loss(
            x, old, ref if beta else None, advantages, mask, objective, totals, weights
        )[0]

    assert torch.autograd.gradcheck(loss, (logps,), eps=1e-6, atol=1e-6)


def test_clip_higher_lets_a_good_token_rise_further_than_a_bad_one_falls() -> None:
    old = torch.zeros(1, 2)
    logps = torch.tensor([[math.log(1.25), math.log(1.4)]]).requires_grad_()
    one = Totals(1, 2)
    objective = Objective(0.2, 0.28, 0.0, "dapo")
    loss, sums = da_grpo_loss(logps, old, None, torch.ones(1), torch.ones(1, 2), objective, one)
    loss.backward()
    assert logps.grad[0, 0] < 0 and logps.grad[0, 1] == 0 and sums["clipped"] == 1


def test_the_end_token_gets_gradient_even_where_it_is_the_pad_token_too() -> None:
    eos = 2
    ids, mask = da_grpo.padded([[5, eos], [5, 6, 7]], pad=eos)
    assert mask.tolist() == [[1, 1, 0], [1, 1, 1]]
    logits = torch.zeros(2, 3, 9, requires_grad=True)
    logps = da_grpo.token_logprobs(logits, ids)
    da_grpo.aggregate(logps, mask, Objective(), Totals(2, 5)).backward()
    assert logits.grad[0, 1, eos] > 0 and (logits.grad[0, 2] == 0).all()


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_micro_batches_add_up_to_the_batch(how: str) -> None:
    values, mask = torch.randn(6, 4), (torch.rand(6, 4) > 0.4).float()
    totals, objective = Totals(6, float(mask.sum())), Objective(aggregation=how)
    whole = da_grpo.aggregate(values, mask, objective, totals)
    parts = [
        da_grpo.aggregate(values[k : k + 2], mask[k : k + 2], objective, totals) for k in (0, 2, 4)
    ]
    torch.testing.assert_close(torch.stack(parts).sum(), whole)


def test_dapo_weighs_tokens_and_grpo_weighs_sequences() -> None:
    values, mask = (
        torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
        torch.tensor([[1.0, 0, 0], [1, 1, 1]]),
    )
    totals = Totals(2, 4)
    got = {
        h: da_grpo.aggregate(values, mask, Objective(aggregation=h, max_tokens=5), totals).item()
        for h in AGGREGATIONS
    }
    assert got == pytest.approx({"dapo": 0.25, "grpo": 0.5, "dr_grpo": 0.1})


def test_logprobs_and_entropy_are_those_of_the_distribution() -> None:
    logits, ids = torch.randn(2, 3, 7), torch.randint(0, 7, (2, 3))
    reference = torch.distributions.Categorical(logits=logits / 0.7)
    torch.testing.assert_close(da_grpo.token_logprobs(logits, ids, 0.7), reference.log_prob(ids))
    plain = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(da_grpo.token_entropy(logits), plain.entropy())


def test_parts_of_the_tokens_come_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, ids = torch.randn(2, 5, 7).double(), torch.randint(0, 7, (2, 5))
    found = []
    for part in (2, 512):
        monkeypatch.setattr(da_grpo, "PART", part)
        x = logits.clone().requires_grad_()
        logps = da_grpo.token_logprobs(x, ids, 0.7)
        logps.square().sum().backward()
        found.append((logps.detach(), da_grpo.token_entropy(logits), x.grad))
    torch.testing.assert_close(found[0], found[1])
