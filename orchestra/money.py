"""Money is counted once and never overspent (Eq. 21): a purse for each sub-task and each decision,
a ledger for the run.

A cost of None is unknown: some price or some token count was not given. It stays unknown in every
sum, and is never shown as 0.
"""

from __future__ import annotations

import math

from orchestra.vocabulary import Backend, BudgetExceeded

LEAST_OUTPUT_TOKENS = 64  # a call that could not even say this much is not started
DEFAULT_OUTPUT_TOKENS = 4096  # the paper's response length; asked for only under a budget


def add_usd(*amounts: float | None) -> float | None:
    """A sum of costs; None as soon as one is unknown."""
    known = [a for a in amounts if a is not None]
    return sum(known) if len(known) == len(amounts) else None


class Purse:
    """What one sub-task or one decision may spend, by one thread, call after call.

    Shares are fixed beforehand, so what a call may say depends on nothing but the calls before it
    in the same purse: prompts stay the same under every schedule of threads.
    """

    def __init__(self, limit_usd: float | None = None) -> None:
        self.limit_usd = limit_usd
        self.spent_usd: float | None = 0.0
        self.paid_usd: float | None = 0.0  # of it, what was asked now and not played from a tape
        self.calls = self.tokens = 0

    def split(self, parts: int, later: int = 0) -> list[Purse]:
        """What is left, shared evenly among calls side by side, with `later` shares kept back."""
        if self.limit_usd is None:
            return [Purse() for _ in range(parts)]
        share = max(self.limit_usd - (self.spent_usd or 0.0), 0.0) / (parts + later)
        return [Purse(share) for _ in range(parts)]

    def join(self, part: Purse) -> None:
        """Count what a purse of another thread spent: by one thread, in the order of the parts."""
        self.calls += part.calls
        self.tokens += part.tokens
        self.spent_usd = add_usd(self.spent_usd, part.spent_usd)
        self.paid_usd = add_usd(self.paid_usd, part.paid_usd)

    def charge(self, cost_usd: float | None, played: bool = False, tokens: int = 0) -> None:
        self.calls += 1
        self.tokens += tokens
        self.spent_usd = add_usd(self.spent_usd, cost_usd)
        self.paid_usd = self.paid_usd if played else add_usd(self.paid_usd, cost_usd)

    def affords_again(self, most_usd: float | None, played: bool) -> bool:
        """Whether there is money for a try after one that was sent in vain. Under a limit that one
        is booked: it may be on the bill.
        """
        if self.limit_usd is None:
            return True
        again = self.affords(2 * (most_usd or 0.0))
        if again:
            self.charge(most_usd, played)
        return again

    def affords(self, cost_usd: float | None) -> bool:
        spent_usd = (self.spent_usd or 0.0) + (cost_usd or 0.0)
        return self.limit_usd is None or spent_usd <= self.limit_usd

    def check(self, cost_usd: float | None) -> None:
        """Raises BudgetExceeded where a call of this price would pass the limit."""
        if not self.affords(cost_usd):
            price = f"a call of {cost_usd or 0.0:.6f} USD"
            raise BudgetExceeded(f"{price} would pass the limit of {self.limit_usd:.6f} USD")

    def output_tokens(self, backend: Backend, input_tokens: int) -> int | None:
        """How long an answer the money left can pay for; None: no limit. Raises BudgetExceeded."""
        if self.limit_usd is None or backend.price is None:
            return backend.max_output_tokens
        most = backend.max_output_tokens or DEFAULT_OUTPUT_TOKENS
        input_usd = backend.cost_usd(input_tokens, 0) or 0.0
        left_usd = self.limit_usd - (self.spent_usd or 0.0) - input_usd
        price = backend.price.output
        tokens = left_usd / price * 1e6 if price else math.copysign(math.inf, left_usd)
        affordable = int(min(max(tokens, 0), most))
        if affordable < min(most, LEAST_OUTPUT_TOKENS):
            share = f"its share, {max(left_usd + input_usd, 0):.6f} USD,"
            raise BudgetExceeded(f"{share} is too little for a call to {backend.name}")
        return affordable


class Ledger:
    """The run's money, B_t, and its calls. One thread books, in submission order: sums of floats
    depend on their order.
    """

    def __init__(self, budget_usd: float | None) -> None:
        self.budget_usd = budget_usd  # B_t
        self.cost_usd: float | None = 0.0
        self.paid_usd: float | None = 0.0
        self.calls = self.tokens = 0

    def book(self, purse: Purse) -> None:
        self.calls += purse.calls
        self.tokens += purse.tokens
        self.cost_usd = add_usd(self.cost_usd, purse.spent_usd)
        self.paid_usd = add_usd(self.paid_usd, purse.paid_usd)
        if self.budget_usd is not None:
            self.budget_usd -= purse.spent_usd or 0.0  # Eq. 21: B_{t+1} = B_t - sum of c
