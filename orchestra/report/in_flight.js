// Calls in flight, on the live page. The tape gets a call when it ends, so what runs now follows from the
// events: a sub-task without a result waits for its next call, and else the main agent for its decision.

function addInFlight(run, lanes, calls) {
  const open = lanes.filter((l) => l.kind === "subtask" && !l.result);
  if (!open.length) open.push(...decidingLane(run, lanes));
  for (const l of open) {
    const sinceEvent = (l.steps.at(-1) ?? l.event ?? {}).timing?.at_s ?? OPENED_S;
    l.open = { since: Math.max(sinceEvent, ...l.calls.map((c) => c.to + calls.cut)) };
    l.open.from = Math.min(l.open.since - calls.cut, now() - calls.cut);
    lanes.span = Math.max(lanes.span, now() - calls.cut);
  }
}

// The round that the main agent decides: the next one, or again the same after a reply that was not usable.
function decidingLane(run, lanes) {
  const last = run.events.at(-1);
  if (last?.event === "decision" && !last.mistake) return [];
  const round = last?.event === "decision" ? last.at[0] : (last?.at[0] ?? 0) + 1;
  const name = `r${round}/deciding`, lane = { name, round, kind: "other", title: `Round ${round}: deciding`, event: last, calls: [], needs: [], steps: [] };
  lanes.push(lane);
  return [lane];
}

const now = () => Date.now() / 1000;

function inFlightElement(l, x) {
  const bar = el("a", { class: "bar open", href: linkTo(l.name), "data-since": l.open.since, style: `left: ${x(l.open.from)}px; right: 0; top: 3px` });
  return updated(bar);
}

function updated(bar) {
  bar.textContent = `${Math.max(0, now() - bar.dataset.since).toFixed(0)} s`;
  bar.setAttribute("aria-label", `${bar.textContent}: ${placeOf(bar.hash)}, a call is in flight`);
  return bar;
}

const updateInFlight = () => document.querySelectorAll(".bar.open").forEach(updated);
