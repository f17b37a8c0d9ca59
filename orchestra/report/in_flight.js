// Calls in flight, on the live page. The tape gets a call when it ends, so what runs now follows from the
// events: a sub-task without a result waits for its next call, and else the main agent for its decision.

function addInFlight(run, lanes, calls) {
  let open = lanes.filter((l) => l.kind === "subtask" && !l.result).slice(0, run.parallel);  // the others wait for a thread
  if (!open.length) open = decidingLane(run, lanes);
  for (const l of open) l.since = Math.max(freed(l, lanes, run.parallel), (l.steps.at(-1) ?? l.event)?.timing?.at_s ?? 0, run.began_s ?? OPENED_S, ...l.calls.map((c) => c.to + calls.cut));
  const still = Math.min(...open.map((l) => l.since)) - calls.cut - lanes.span;
  if (still > 60) calls.cut += still - 5;  // the run was resumed
  for (const l of open) {
    l.open = Math.max(0, l.since - calls.cut);
    lanes.span = Math.max(lanes.span, now() - calls.cut);
  }
}

// When a sub-task got its thread, if it had to wait for one: as many others had ended by then.
function freed(l, lanes, parallel) {
  const here = lanes.filter((x) => x.kind === "subtask" && x.round === l.round), ends = here.map((x) => x.result?.timing?.at_s).filter(Boolean);
  return ends.sort((a, b) => a - b)[here.indexOf(l) - parallel] ?? 0;
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
  const bar = el("a", { class: "bar open", href: linkTo(l.name), "data-since": l.since, style: `left: ${x(l.open)}px; right: 0; top: 3px` });
  return updated(bar);
}

function updated(bar) {
  bar.textContent = `${Math.max(0, now() - bar.dataset.since).toFixed(0)} s`;
  bar.setAttribute("aria-label", `${bar.textContent}: ${placeOf(bar.hash)}, a call is in flight`);
  return bar;
}

// The bars end where the axis ends, so the axis is drawn anew once it is a quarter too short.
function updateInFlight() {
  document.querySelectorAll(".bar.open").forEach(updated);
  const { lanes } = shown;
  if (lanes.some((l) => l.open >= 0) && now() - lanes.calls.cut > 1.25 * lanes.span) showNewer(page);
}
