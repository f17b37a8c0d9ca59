"""The budget (Eq. 21): the run has a purse, and so has each sub-task and decision. Every cost is
counted once, and no purse is overspent.

A cost of None is unknown, because a price or a token count is missing. A sum with it is unknown.

    >>> run = Purse(limit_usd=1.0)
    >>> first, second = run.split(2)  # two sub-tasks that run in parallel
    >>> first.charge(cost_usd=0.4, tokens=1000)
    >>> second.charge(cost_usd=0.1, tokens=300)
    >>> run.join(first)
    >>> run.join(second)
    >>> run.left_usd, run.calls, run.tokens
    (0.5, 2, 1300)
"""

from __future__ import annotations

import math
import threading

from orchestra.vocabulary import Backend, BudgetExceeded, Cause, EndOfRun

ROUNDING = 1 + 1e-9  # shares, as floats, may add up to a little more than the whole
LEAST_OUTPUT_TOKENS = 64  # a call is not started if the purse cannot pay for these
DEFAULT_OUTPUT_TOKENS = 4096  # the paper's response length; sent only under a budget


def add_usd(*amounts: float | None) -> float | None:
    """A sum of costs; None if one is unknown.

    >>> add_usd(0.25, 0.5), add_usd(0.25, None)
    (0.75, None)
    """
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def assumed_usd(has_budget: bool, most_usd: float | None) -> float | None:
    """The cost booked if the endpoint reports none: under a budget the most it can be, else
    unknown, unless the call is free.
    """
    if not has_budget and most_usd != 0:
        return None
    return most_usd


class Purse:
    """The money that a run (B_t), a sub-task or a decision may spend, and what it has spent.

    A purse belongs to one thread. Shares are fixed before threads start, and joined afterwards in
    a fixed order, so no request depends on the timing of threads.
    """

    def __init__(self, limit_usd: float | None = None) -> None:
        self.limit_usd = limit_usd
        self.kept_usd = 0.0  # for the summary of a sub-agent that does not report
        self.spent_usd: float | None = 0.0
        self.paid_usd: float | None = 0.0  # the part that this process paid
        self.calls = 0
        self.tokens = 0

    @property
    def left_usd(self) -> float | None:
        """B_t. None: no limit."""
        if self.limit_usd is None:
            return None
        spent_usd = self.spent_usd or 0.0  # an unknown cost counts as 0
        return self.limit_usd - spent_usd - self.kept_usd

    def split(self, parts: int, later: int = 0) -> list[Purse]:
        """Equal shares of what is left for parallel calls; `later` more shares are kept for later
        calls.
        """
        left_usd = self.left_usd
        share_usd = None
        if left_usd is not None:
            share_usd = max(left_usd, 0.0) / (parts + later)
        return [Purse(limit_usd=share_usd) for _ in range(parts)]

    def holding_back(self, usd: float | None, least_usd: float | None) -> Purse:
        """A purse for a call that leaves `usd` of this one to another call. If it would then hold
        less than `least_usd`, it holds all that is left. An unknown cost counts as 0.
        """
        left_usd = self.left_usd
        if left_usd is None:
            return Purse()
        rest_usd = left_usd - (usd or 0.0)
        enough = rest_usd >= (least_usd or 0.0)
        return Purse(rest_usd if enough else left_usd)

    def join(self, part: Purse) -> None:
        """Add what another purse spent. Eq. 21: B_{t+1} = B_t - sum of c."""
        self.calls += part.calls
        self.tokens += part.tokens
        self.spent_usd = add_usd(self.spent_usd, part.spent_usd)  # Eq. 21
        self.paid_usd = add_usd(self.paid_usd, part.paid_usd)

    def charge(
        self, cost_usd: float | None, played: bool = False, tokens: int = 0
    ) -> None:
        """Book one call. `played`: its reply comes from the tape, so nobody is paid."""
        self.calls += 1
        self.tokens += tokens
        self.spent_usd = add_usd(self.spent_usd, cost_usd)
        if not played:
            self.paid_usd = add_usd(self.paid_usd, cost_usd)

    def affords(self, cost_usd: float | None) -> bool:
        """Whether the purse can pay a cost. An unknown cost counts as 0."""
        left_usd = self.left_usd
        return left_usd is None or (cost_usd or 0.0) <= left_usd

    def output_tokens(self, backend: Backend, input_tokens: int) -> int | None:
        """The longest answer that the purse can pay; None: no limit. Raises BudgetExceeded."""
        left_usd = self.left_usd
        price = backend.price_usd_per_mtok
        if left_usd is None or price is None:
            return backend.max_output_tokens
        most = backend.max_output_tokens or DEFAULT_OUTPUT_TOKENS
        input_usd = backend.cost_usd(input_tokens, 0) or 0.0
        affordable = _tokens_for(left_usd - input_usd, price.output)
        least = min(most, LEAST_OUTPUT_TOKENS)
        if affordable < least:
            needed_usd = backend.cost_usd(input_tokens, least) or 0.0
            raise BudgetExceeded(
                f"budget exhausted: {max(left_usd, 0):.6f} USD cannot cover a call to "
                f"{backend.name!r}, which needs {needed_usd:.6f} USD"
            )
        return int(min(affordable, most))


# ---- over all threads ----------------------------------------------------------------------------


class LimitReached(EndOfRun):
    """What several runs may pay together does not cover the next call. A resume can make it."""

    cause: Cause = "budget"


class Ledger:
    """What all threads of a run have spent, and hold back for their calls in flight.

    While no call costs more than it may, shares alone keep a run within its budget. The ledger is
    for an endpoint that ignores `max_tokens`: no call starts that could exceed what is then left.

    `shared` is the ledger of several runs, which no model reads. It counts what they pay: a call
    that comes from a tape is free there.
    """

    def __init__(
        self,
        limit_usd: float | None = None,
        spent_usd: float | None = 0.0,
        shared: Ledger | None = None,
    ) -> None:
        self.limit_usd = limit_usd
        self.shared = shared
        self.lock = threading.Lock()
        self.held_usd = spent_usd or 0.0  # spent or held back
        self.worst_usd: dict[str, float] = {}  # by backend, of calls that cost too much

    def hold(self, usd: float) -> bool:
        """Hold back an amount. False if that could exceed the limit."""
        with self.lock:
            held_usd = self.held_usd + usd
            if self.limit_usd is not None and held_usd > self.limit_usd * ROUNDING:
                return False
            self.held_usd = held_usd
            return True

    def correct(self, usd: float) -> None:
        """Add what was spent beyond the amount that is held back for it."""
        with self.lock:
            self.held_usd += usd


class Bill:
    """What one exchange may cost and costs: held back in the ledger while it is in flight, charged
    to a purse afterwards.

        >>> ledger = Ledger(limit_usd=1.0)
        >>> first, second, third = (Bill(ledger, Purse(), "b", most_usd=0.4) for _ in range(3))
        >>> first.covers(attempts=1), second.covers(attempts=1), third.covers(attempts=1)
        (True, True, False)
        >>> first.charge(0.1)
        >>> first.settle()
        >>> third.covers(attempts=1)
        True
    """

    def __init__(
        self, ledger: Ledger, purse: Purse, backend: str, most_usd: float | None
    ) -> None:
        """`most_usd`: the most that one attempt costs; None: unknown."""
        self.backend = backend
        self.most_usd = most_usd
        self._ledger = ledger
        self._purse = purse
        self._held_usd = 0.0
        self._spent_usd = 0.0
        self._paid_usd = 0.0  # the part that did not come from a tape; unknown: at most

    @property
    def assumed_usd(self) -> float | None:
        """The cost booked if the endpoint reports none."""
        return assumed_usd(self._purse.limit_usd is not None, self.most_usd)

    def covers(self, attempts: int) -> bool:
        """Hold back what so many attempts may cost. False if that could exceed the budget. Raises
        LimitReached.
        """
        ledger = self._ledger
        worst_usd = ledger.worst_usd.get(self.backend, 0.0)
        most_usd = attempts * max(self.most_usd or 0.0, worst_usd)
        more_usd = most_usd - self._held_usd
        if not ledger.hold(more_usd):
            return False
        if ledger.shared and not ledger.shared.hold(more_usd):
            ledger.correct(-more_usd)
            limit = f"{ledger.shared.limit_usd:g} USD for all runs together"
            raise LimitReached(f"{limit} do not cover a call to {self.backend!r}")
        self._held_usd = most_usd
        return True

    def affords_another(self, attempts: int) -> bool:
        """Whether one more attempt can be paid, after so many that may be billed."""
        usd = (attempts + 1) * (self.most_usd or 0.0)
        try:
            return self._purse.affords(usd) and self.covers(attempts + 1)
        except LimitReached:  # what was billed is recorded first
            return False

    def charge(
        self, cost_usd: float | None, played: bool = False, tokens: int = 0
    ) -> None:
        """Book one attempt. `played`: it comes from the tape."""
        self._purse.charge(cost_usd, played, tokens)
        self._spent_usd += cost_usd or 0.0
        if not played:
            usd = self.most_usd if cost_usd is None else cost_usd
            self._paid_usd += usd or 0.0

    def is_exceeded_by(self, cost_usd: float | None) -> bool:
        """Whether an answer cost more than it may. Later calls of the backend hold back as much."""
        ledger = self._ledger
        usd = cost_usd or 0.0
        is_limited = ledger.limit_usd is not None or ledger.shared is not None
        if not is_limited or usd <= (self.most_usd or 0.0) * ROUNDING:
            return False
        with ledger.lock:
            worst_usd = ledger.worst_usd.get(self.backend, 0.0)
            ledger.worst_usd[self.backend] = max(worst_usd, usd)
        return True

    def settle(self) -> None:
        """The exchange has ended: what it cost replaces what was held back."""
        self._ledger.correct(self._spent_usd - self._held_usd)
        if self._ledger.shared:
            self._ledger.shared.correct(self._paid_usd - self._held_usd)
        self._held_usd = self._spent_usd


def _tokens_for(usd: float, usd_per_mtok: float) -> float:
    """How many tokens an amount pays for; infinity where they are free."""
    if usd_per_mtok == 0:
        return math.inf if usd >= 0 else -math.inf
    return usd / usd_per_mtok * 1e6
