"""Advantage and loss are TRL's own and those of Eq. 30 and 31 written out; and what no input breaks."""

import math
import statistics
from collections import Counter, defaultdict
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import train_da_grpo as da_grpo
from orchestra.training.logprobs import padded, token_logprobs
from train_da_grpo import Objective, Totals, group_advantages

AGGREGATIONS = ("dapo", "grpo", "dr_grpo")
PROMPTS, GROUP, WIDTH, LONGEST, EOS = 3, 4, 7, 16, 2
LOGP = st.floats(-30, 0) | st.just(-math.inf)
SAME = {"atol": 1e-5, "rtol": 0}
pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's imports warn


@pytest.fixture(scope="module")
def trainer():
    needed = "needs TRL (make .venv/train)"
    return pytest.importorskip("trl.trainer.grpo_trainer", reason=needed).GRPOTrainer


@pytest.fixture
def x():
    """Ratios from 0.5 to 2, so that the clip bites on both sides; lengths from 1 to WIDTH."""
    g, n = torch.Generator().manual_seed(0), PROMPTS * GROUP
    logps = -3 * torch.rand(n, WIDTH, generator=g)
    lengths = torch.randint(1, WIDTH + 1, (n,), generator=g)
    apart = {"old": 0.5, "ref": 0.5, "sampler": 0.7}
    tensors = {k: logps + d * torch.randn(n, WIDTH, generator=g) for k, d in apart.items()}
    mask = (torch.arange(WIDTH)[None] < lengths[:, None]).float()
    tensors |= {"mask": mask, "advantages": torch.randn(n, generator=g)}
    return SimpleNamespace(logps=logps.requires_grad_(), **tensors)


# ---- TRL -----------------------------------------------------------------------------------------


def stub(**fields):
    """What GRPOTrainer's methods read of `self`: one process, no accumulation."""
    self = MagicMock()
    self.model = torch.nn.Linear(1, 1)
    self.configure_mock(**{
        "_metrics": {"train": defaultdict(list)}, "model.is_gradient_checkpointing": False,
        "accelerator.gather": lambda t: t, "accelerator.reduce": lambda t, reduction: t,
        "accelerator.num_processes": 1, "accelerator.process_index": 0, "accelerator.device": torch.device("cpu"),
        "args.delta": None, "args.use_bias_correction_kl": False, "args.steps_per_generation": 1,
        "epsilon_low": 0.2, "epsilon_high": 0.28, "importance_sampling_level": "token", "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None, "max_completion_length": LONGEST, "aux_loss_enabled": False,
        "current_gradient_accumulation_steps": 1, "_entropy_bonus_enabled": False, **fields,
    })  # fmt: skip
    return self


def trl_loss(trainer, x, how, beta, ratio=None):
    self = stub(loss_type=how, beta=beta, use_vllm=ratio is not None)
    self._get_per_token_logps_and_entropies = lambda *a, **k: (x.logps, x.mask, None)
    ids = torch.zeros_like(x.mask).long()
    inputs = {"prompt_ids": ids[:, :2], "prompt_mask": ids[:, :2] + 1, "completion_ids": ids}
    inputs |= {"completion_mask": x.mask, "advantages": x.advantages, "old_per_token_logps": x.old}
    inputs |= {"ref_per_token_logps": x.ref, "num_items_in_batch": x.mask.sum()}
    inputs |= {} if ratio is None else {"importance_sampling_ratio": ratio}
    return trainer._compute_loss(self, self.model, inputs), self._metrics["train"]


def trl_scored(trainer, rewards, x, scale="group"):
    """GRPOTrainer's own scoring of completions, with the generation and the rewards given."""
    n, completions = len(rewards), [list(range(2, 2 + int(k))) for k in x.mask.sum(1)]
    logps = [x.sampler[i, : len(c)].tolist() for i, c in enumerate(completions)]
    self = stub(
        num_generations=GROUP, scale_rewards=scale, tools=[], pad_to_multiple_of=None, environments=None,
        environment_factories=None, mask_truncated_completions=False, reward_weights=torch.ones(1),
        multi_objective_aggregation="sum_then_normalize", use_vllm=True, vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_min=None, vllm_importance_sampling_clip_max=2.0,
    )  # fmt: skip
    self._tokenizer.pad_token_id = 0
    self._get_per_token_logps_and_entropies = lambda *a, **k: (x.old, None, None)
    self._generate = lambda prompts: ([[1]] * n, completions, None, [""] * n, logps, {}, None, None)
    self._calculate_rewards = lambda *a: rewards[:, None]
    return trainer._generate_and_score_completions(self, [{"prompt": "x"}] * n)


# ---- the loss ------------------------------------------------------------------------------------


def ours(x, how, beta, cap=None):
    """The loss, and the metrics, of two micro-batches of unequal size: together, the batch's."""
    objective = Objective(0.2, 0.28, beta, how, max_tokens=LONGEST)
    totals, parts = Totals(len(x.mask), float(x.mask.sum())), []
    for n in (slice(5), slice(5, None)):
        weights = da_grpo.importance(x.old[n], x.sampler[n], cap) if cap else None
        given = x.logps[n], x.old[n], x.ref[n] if beta else None, x.advantages[n], x.mask[n]
        parts.append(da_grpo.da_grpo_loss(*given, objective, totals, weights))
    return sum(loss for loss, _ in parts), sum((Counter(m) for _, m in parts), Counter())


def written_out(x, how, beta, cap):
    """Eq. 31, token by token."""
    loss, n_of = 0.0, len(x.mask)
    for n, length in enumerate(map(int, x.mask.sum(1))):
        divisors = {"dapo": x.mask.sum(), "grpo": length * n_of, "dr_grpo": LONGEST * n_of}
        for t in range(length):
            logp, old, ref, sampler = (y[n, t] for y in (x.logps, x.old, x.ref, x.sampler))
            ratio, advantage = (logp - old).exp(), float(x.advantages[n])
            gain = min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
            weight = min(math.exp(old - sampler), cap) if cap else 1
            kl = (ref - logp).exp() - (ref - logp) - 1
            loss += (beta * kl - weight * gain) / divisors[how]
    return loss


def same_loss_and_gradient(x, mine, reference):
    torch.testing.assert_close(mine, reference, **SAME)
    got, expected = (torch.autograd.grad(loss, x.logps)[0] for loss in (mine, reference))
    torch.testing.assert_close(got, expected, **SAME)
    return expected.abs().max() > 1e-3


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("beta", [0.0, 0.01])
@pytest.mark.parametrize("cap", [None, 2.0])
class TestLoss:
    def test_the_loss_and_its_gradient_are_those_of_eq_31(self, x, how, beta, cap):
        assert same_loss_and_gradient(x, ours(x, how, beta, cap)[0], written_out(x, how, beta, cap))

    def test_the_loss_and_its_gradient_are_trls(self, trainer, x, how, beta, cap):
        scored = trl_scored(trainer, torch.rand(PROMPTS * GROUP), x) if cap else {}
        reference = trl_loss(trainer, x, how, beta, scored.get("importance_sampling_ratio"))[0]
        assert same_loss_and_gradient(x, ours(x, how, beta, cap)[0], reference)


def test_the_kl_and_the_clipped_share_are_trls(trainer, x):
    sums, logged = ours(x, "grpo", 0.01)[1], trl_loss(trainer, x, "grpo", 0.01)[1]
    means = [sums[name] / float(x.mask.sum()) for name in ("kl", "clipped")]
    assert means == pytest.approx([logged["kl"][0], logged["clip_ratio/region_mean"][0]], abs=1e-5)
    assert 0 < means[1] < 1


@settings(max_examples=40)
@given(st.lists(st.tuples(LOGP, LOGP, LOGP, LOGP, st.booleans()), min_size=1))
def test_neither_loss_nor_gradient_is_ever_nan(tokens):
    """One sequence of any probabilities and any mask, also one without a token."""
    *four, mask = torch.tensor(tokens).double().T[:, None]
    logps, old, ref, sampler = four
    weights, totals = da_grpo.importance(old, sampler, 2.0), Totals(1, float(mask.sum()))
    given = (torch.randn(1), mask, Objective(), totals, weights)
    loss, sums = da_grpo.da_grpo_loss(logps.requires_grad_(), old, ref, *given)
    loss.backward()
    assert loss.isfinite() and all(map(math.isfinite, sums.values()))
    assert logps.grad.isfinite().all() and (logps.grad[mask == 0] == 0).all()


# ---- tokens --------------------------------------------------------------------------------------


def test_the_end_token_gets_gradient_even_where_it_is_the_pad_token_too():
    ids, mask = padded([[5, EOS], [5, 6, 7]], pad=EOS)
    assert mask.tolist() == [[1, 1, 0], [1, 1, 1]]
    logits = torch.zeros(2, 3, 9, requires_grad=True)
    logprobs = token_logprobs(logits.flatten(0, 1), ids.flatten()).view(2, 3)
    da_grpo.aggregate(logprobs, mask, Objective(), Totals(2, 5)).backward()
    assert logits.grad[0, 1, EOS] > 0 and (logits.grad[0, 2] == 0).all()


@pytest.mark.parametrize("part", [2, 512])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_gradient_of_logprobs_is_autograds(monkeypatch, part, count):
    monkeypatch.setattr("orchestra.training.logprobs.PART", part)
    generator = torch.Generator().manual_seed(count)
    ids = torch.randint(11, (count,), generator=generator)
    seen = torch.randn(count, 11, generator=generator, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(count, generator=generator, dtype=torch.float64)
    mine = token_logprobs(seen, ids, 0.7)
    reference = (seen / 0.7).log_softmax(-1)[torch.arange(count), ids]
    torch.testing.assert_close(mine, reference)
    of_both = [torch.autograd.grad((weights * x).sum(), seen)[0] for x in (mine, reference)]
    torch.testing.assert_close(*of_both)


# ---- the advantage -------------------------------------------------------------------------------


@pytest.fixture(params=[0.5, math.nan], ids=["all scored", "one dropped"])
def rewards(request):
    """A group that teaches, one of equals, and one with a sample that nobody could score."""
    rewards = torch.rand(PROMPTS, GROUP, generator=torch.Generator().manual_seed(4))
    rewards[1], rewards[2, 1] = 0.1, request.param
    return rewards


@pytest.mark.parametrize(("scale", "trls"), [(True, "group"), (False, "none")])
def test_the_advantages_are_trls(trainer, x, rewards, scale, trls):
    mine, informative = group_advantages(rewards, scale=scale)
    reference = trl_scored(trainer, rewards.flatten(), x, trls)["advantages"]
    torch.testing.assert_close(mine.flatten(), reference, **SAME)
    assert informative.tolist() == [True, False, True]


def test_the_advantages_are_those_of_eq_30(rewards):
    for row, advantages in zip(rewards, group_advantages(rewards)[0], strict=True):
        scored = [float(r) for r in row if not r.isnan()]
        mean, std = statistics.mean(scored), statistics.stdev(scored)
        expected = [0 if r.isnan() else (float(r) - mean) / (std + 1e-4) for r in row]
        assert advantages.tolist() == pytest.approx(expected, abs=1e-5)


def test_the_advantages_of_a_thousand_groups_are_those_of_eq_30():
    """And the groups that --min-std 0.1 leaves out are those of a deviation below 0.1."""
    generator = torch.Generator().manual_seed(30)
    spread = torch.rand(1000, 1, generator=generator)
    rewards = (torch.rand(1000, GROUP, generator=generator) * spread).double()
    advantages, _ = group_advantages(rewards)
    kept, informative = group_advantages(rewards, min_std=0.1)
    for row, got, teaches, still in zip(
        rewards.tolist(), advantages, informative, kept, strict=True
    ):
        mean, std = statistics.mean(row), statistics.stdev(row)
        assert got.tolist() == pytest.approx([(r - mean) / (std + 1e-4) for r in row])
        assert bool(teaches) == (std >= 0.1) == bool(still.any())


@pytest.mark.parametrize("group", [[0.7], [0.1] * 8, [0.5, 0.5 + 1e-9], [0.3, math.nan]])
def test_a_group_of_one_and_a_group_of_equals_teach_nothing(group):
    advantages, informative = group_advantages(torch.tensor([group]))
    assert informative.tolist() == [False] and not advantages.any()
