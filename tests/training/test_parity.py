"""The same tensors through TRL's own GRPOTrainer code and through da_grpo.py."""

from __future__ import annotations

import math
from collections import defaultdict
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: requirements-train.txt")
trl = pytest.importorskip("trl", reason="TRL is not installed: requirements-train.txt")

import da_grpo  # noqa: E402
from training.options import AGGREGATIONS  # noqa: E402

PROMPTS, GROUP, WIDTH = 3, 4, 7
CASES = [(how, beta) for how in AGGREGATIONS for beta in (0.0, 0.01)]
pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's imports warn


@pytest.fixture(scope="module")
def trainer() -> Any:
    from trl.trainer.grpo_trainer import GRPOTrainer

    return GRPOTrainer


def tensors(seed: int = 0) -> SimpleNamespace:
    """Ratios from 0.5 to 2, so that the clip bites on both sides; lengths from 1 to WIDTH."""
    g = torch.Generator().manual_seed(seed)
    n = PROMPTS * GROUP
    logps = -3 * torch.rand(n, WIDTH, generator=g)
    lengths = torch.randint(1, WIDTH + 1, (n,), generator=g)
    return SimpleNamespace(
        logps=logps.requires_grad_(),
        old=logps.detach() + 0.5 * torch.randn(n, WIDTH, generator=g),
        ref=logps.detach() + 0.5 * torch.randn(n, WIDTH, generator=g),
        sampler=logps.detach() + 0.7 * torch.randn(n, WIDTH, generator=g),
        advantages=torch.randn(n, generator=g),
        mask=(torch.arange(WIDTH)[None] < lengths[:, None]).float(),
    )


def stub(how: str, beta: float, x: SimpleNamespace, **fields: Any) -> Any:
    """What GRPOTrainer's methods read of `self`; one process, no accumulation."""
    self = MagicMock()
    self._metrics = {"train": defaultdict(list)}
    self.accelerator.gather = lambda t: t
    self.accelerator.reduce = lambda t, reduction: t
    self.accelerator.num_processes, self.accelerator.process_index = 1, 0
    self.accelerator.device = torch.device("cpu")
    self.model = torch.nn.Linear(1, 1)
    self.model.is_gradient_checkpointing = False
    values = {
        "loss_type": how,
        "beta": beta,
        "epsilon_low": 0.2,
        "epsilon_high": 0.28,
        "importance_sampling_level": "token",
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "max_completion_length": 16,
        "current_gradient_accumulation_steps": 1,
        "_entropy_bonus_enabled": False,
        "aux_loss_enabled": False,
        "use_vllm": False,
        "_get_per_token_logps_and_entropies": lambda *a, **k: (
            x.logps,
            torch.ones_like(x.old),
            None,
        ),
    }
    for name, value in {**values, **fields}.items():
        setattr(self, name, value)
    self.args.delta, self.args.use_bias_correction_kl, self.args.steps_per_generation = (
        None,
        False,
        1,
    )
    return self


def objective(how: str, beta: float) -> da_grpo.Objective:
    return da_grpo.Objective(0.2, 0.28, beta, how, max_tokens=16, importance_cap=2.0)


def ours(how: str, beta: float, x: SimpleNamespace, weights: Any = None) -> Any:
    totals = da_grpo.Totals(len(x.mask), float(x.mask.sum()))
    ref = x.ref if beta else None
    return da_grpo.da_grpo_loss(
        x.logps, x.old, ref, x.advantages, x.mask, objective(how, beta), totals, weights
    )


def theirs(trainer: Any, how: str, beta: float, x: SimpleNamespace, **more: Any) -> Any:
    ids = torch.zeros_like(x.mask).long()
    inputs = {
        "prompt_ids": ids[:, :2],
        "prompt_mask": ids[:, :2] + 1,
        "completion_ids": ids,
        "completion_mask": x.mask,
    }
    inputs |= {
        "advantages": x.advantages,
        "old_per_token_logps": x.old,
        "ref_per_token_logps": x.ref,
    }
    inputs |= {"num_items_in_batch": x.mask.sum(), **more}
    self = stub(how, beta, x, use_vllm=bool(more), vllm_importance_sampling_correction=bool(more))
    return trainer._compute_loss(self, self.model, inputs), self


@pytest.mark.parametrize(("how", "beta"), CASES)
def test_the_loss_and_its_gradient_are_trls(trainer: Any, how: str, beta: float) -> None:
    x = tensors()
    mine, _ = ours(how, beta, x)
    reference, _ = theirs(trainer, how, beta, x)
    assert mine.item() == pytest.approx(reference.item(), abs=1e-5)
    got, expected = (torch.autograd.grad(loss, x.logps)[0] for loss in (mine, reference))
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("how", "beta"), CASES)
def test_the_loss_with_the_sampler_correction_is_trls(trainer: Any, how: str, beta: float) -> None:
    x = tensors(1)
    weights = da_grpo.importance(x.old, x.sampler, 2.0)
    ratio = trl_rollout(trainer, torch.randn(PROMPTS * GROUP), x, vllm=True)[
        "importance_sampling_ratio"
    ]
    torch.testing.assert_close(weights * x.mask, ratio * x.mask, atol=1e-5, rtol=0)
    assert (weights == 2.0).any()
    mine, _ = ours(how, beta, x, weights)
    reference, _ = theirs(trainer, how, beta, x, importance_sampling_ratio=ratio)
    assert mine.item() == pytest.approx(reference.item(), abs=1e-5)


def test_the_kl_and_the_clipped_share_are_trls(trainer: Any) -> None:
    x = tensors(2)
    sums = ours("grpo", 0.01, x)[1]
    logged = theirs(trainer, "grpo", 0.01, x)[1]._metrics["train"]
    tokens = float(x.mask.sum())
    assert sums["kl"] / tokens == pytest.approx(logged["kl"][0], abs=1e-5)
    assert sums["clipped"] / tokens == pytest.approx(logged["clip_ratio/region_mean"][0], abs=1e-5)
    assert 0 < sums["clipped"] < tokens


def trl_rollout(trainer: Any, rewards: Any, x: SimpleNamespace, vllm: bool = False) -> Any:
    """GRPOTrainer's own scoring of completions, with the generation and the rewards given."""
    n = len(rewards)
    completions = [list(range(2, 2 + int(k))) for k in x.mask.sum(1)]
    logps = [x.sampler[i, : len(c)].tolist() for i, c in enumerate(completions)] if vllm else None
    self = stub("grpo", 0.0, x, num_generations=GROUP, scale_rewards="group")
    self.environment_factories, self.environments, self.tools, self.pad_to_multiple_of = (
        None,
        None,
        [],
        None,
    )
    self._tokenizer.pad_token_id, self.mask_truncated_completions = 0, False
    self.multi_objective_aggregation, self.reward_weights = "sum_then_normalize", torch.ones(1)
    self.reward_func_names, self.log_multimodal, self._pending_extra_logs = ["r"], False, {}
    self._pending_metrics, self.num_iterations = {}, 1
    self.args.gradient_accumulation_steps, self.args.gradient_checkpointing_kwargs = 1, None
    self.use_vllm, self.vllm_importance_sampling_correction = vllm, vllm
    self.vllm_importance_sampling_mode = "token_truncate"
    self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max = None, 2.0
    self._get_per_token_logps_and_entropies = lambda *a, **k: (x.old, None, None)
    self._generate = lambda prompts: ([[1]] * n, completions, None, [""] * n, logps, {}, None, None)
    self._calculate_rewards = lambda *a: rewards[:, None]
    return trainer._generate_and_score_completions(self, [{"prompt": "x"}] * n)


@pytest.mark.parametrize("dropped", [False, True])
def test_the_advantages_are_trls(trainer: Any, dropped: bool) -> None:
    rewards = torch.rand(PROMPTS, GROUP, generator=torch.Generator().manual_seed(4))
    rewards[1] = 0.1  # a group that teaches nothing
    if dropped:
        rewards[2, 1] = math.nan  # a sample that nobody could score
    reference = trl_rollout(trainer, rewards.flatten(), tensors())["advantages"]
    mine, informative = da_grpo.group_advantages(rewards)
    torch.testing.assert_close(mine.flatten(), reference, atol=1e-5, rtol=0)
    assert informative.tolist() == [True, False, True]
