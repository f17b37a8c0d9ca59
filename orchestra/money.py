"""The budget (Eq. 21): the run has a purse, and so has each sub-task and decision. Every cost is
counted once, and no purse is overspent.

A cost of None is unknown, because a price or a token count is missing. A sum with it is unknown.
"""

from __future__ import annotations

import math

from orchestra.vocabulary import Backend, BudgetExceeded

LEAST_OUTPUT_TOKENS = 64  # a call is not started if the purse cannot pay for these
DEFAULT_OUTPUT_TOKENS = 4096  # the paper's response length; sent only under a budget


def add_usd(*amounts: float | None) -> float | None:
    """A sum of costs; None if one is unknown."""
    known = [a for a in amounts if a is not None]
    return sum(known) if len(known) == len(amounts) else None


class Purse:
    """The money that a run (B_t), a sub-task or a decision may spend, and what it has spent.

    A purse belongs to one thread. Shares are fixed before threads start, and joined afterwards in
    a fixed order, so no request depends on the timing of threads.
    """

    def __init__(self, limit_usd: float | None = None) -> None:
        self.limit_usd = limit_usd
        self.spent_usd: float | None = 0.0
        self.paid_usd: float | None = 0.0  # the part that this process paid
        self.calls = self.tokens = 0

    @property
    def left_usd(self) -> float | None:
        """B_t. None: no limit."""
        return (
            None if self.limit_usd is None else self.limit_usd - (self.spent_usd or 0.0)
        )

    def split(self, parts: int, later: int = 0) -> list[Purse]:
        """Equal shares of what is left for parallel calls; `later` more shares are kept for later
        calls.
        """
        left = self.left_usd
        return [Purse(left and max(left, 0.0) / (parts + later)) for _ in range(parts)]

    def join(self, part: Purse) -> None:
        """Add what another purse spent. Eq. 21: B_{t+1} = B_t - sum of c."""
        self.calls += part.calls
        self.tokens += part.tokens
        self.spent_usd = add_usd(self.spent_usd, part.spent_usd)  # Eq. 21
        self.paid_usd = add_usd(self.paid_usd, part.paid_usd)

    def charge(
        self, cost_usd: float | None, played: bool = False, tokens: int = 0
    ) -> None:
        self.calls += 1
        self.tokens += tokens
        self.spent_usd = add_usd(self.spent_usd, cost_usd)
        self.paid_usd = self.paid_usd if played else add_usd(self.paid_usd, cost_usd)

    def affords(self, cost_usd: float | None) -> bool:
        left = self.left_usd
        return left is None or (cost_usd or 0.0) <= left

    def output_tokens(self, backend: Backend, input_tokens: int) -> int | None:
        """The longest answer that the purse can pay; None: no limit. Raises BudgetExceeded."""
        left = self.left_usd
        if left is None or backend.price_usd_per_mtok is None:
            return backend.max_output_tokens
        most = backend.max_output_tokens or DEFAULT_OUTPUT_TOKENS
        for_output = left - (backend.cost_usd(input_tokens, 0) or 0.0)
        price = backend.price_usd_per_mtok.output
        affordable = (
            for_output / price * 1e6 if price else math.copysign(math.inf, for_output)
        )
        if affordable < min(most, LEAST_OUTPUT_TOKENS):
            raise BudgetExceeded(
                f"budget exhausted: {max(left, 0):.6f} USD cannot cover a call to {backend.name!r}"
            )
        return int(min(affordable, most))
