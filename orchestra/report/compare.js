// Two runs next to each other, aligned by call.

const chosen = [];  // [run, checkbox]

const compareHint = () => [el("h2", { id: "place", tabindex: -1 }, "Two runs compared"), el("p", {}, "Choose two runs in the table: their outcomes, costs, first decisions and calls are shown next to each other.")];

function choose(r, box) {
  const at = chosen.findIndex(([x]) => x === r);
  if (at >= 0) chosen.splice(at, 1);
  if (box.checked) chosen.push([r, box]);
  if (chosen.length > 2) chosen.shift()[1].checked = false;
  $("right").replaceChildren(...(chosen.length === 2 ? comparison(...chosen.map(([x]) => x)) : compareHint()));
  if (chosen.length === 2) $("right").scrollIntoView({ block: "nearest" });
}

function comparison(a, b) {
  const pages = (r) => el("a", { href: r.page }, r.name);
  const row = (name, of) => [name, of(a), of(b)];
  const facts = table("Outcomes", ["", pages(a), pages(b)], [row("method", (r) => r.method), row("state", (r) => r.state), row("why", (r) => short(r.why, 200)), row("answer", (r) => short(r.answer, 300) || "no answer"),
    row("cost", (r) => usd(r.cost_usd)), row("calls", (r) => String(r.calls)), row("tokens", (r) => String(r.tokens)), row("rounds", (r) => String(r.rounds)), row("time", (r) => seconds(r.latency_s))]);
  return [...compareHint().slice(0, 1), el("p", {}, inWords(a, b)), facts, el("h3", {}, "First decision"), firstDecisions(a, b), el("h3", {}, "Calls"), ...aligned(a, b)];
}

function inWords(a, b) {
  const same = a.answer === b.answer ? "Both give the same answer" : "The answers differ";
  const state = a.state === b.state ? `both ended as ${a.state}` : `${a.name} ended as ${a.state}, ${b.name} as ${b.state}`;
  if (isNone(a.cost_usd) || isNone(b.cost_usd)) return `${same}; ${state}.`;
  const more = b.cost_usd - a.cost_usd;
  const cost = more === 0 ? "the cost is the same" : `${more > 0 ? b.name : a.name} cost ${usd(Math.abs(more))} more`;
  return `${same}; ${state}; ${cost}.`;
}

function firstDecisions(a, b) {
  const lines = [a.first, b.first], known = lines.map((all) => new Set(all));
  return el("div", { class: "two" }, ...[a, b].map((r, n) => el("div", {}, el("h4", {}, r.name),
    el("pre", {}, ...(lines[n].length ? lines[n].flatMap((line) => [known[1 - n].has(line) ? line : el("mark", {}, line), "\n"]) : ["no decision"])))));
}

// Calls with the same place are next to each other. They are the same if request and answer are.
function aligned(a, b) {
  const calls = (r) => new Map(Object.entries(Object.groupBy(r.outline, ([call]) => call)).flatMap(([call, rows]) => rows.map((row, i) => [i ? `${call}~${i + 1}` : call, row])));
  const [p, q] = [calls(a), calls(b)];
  const places = [...new Set([...p.keys(), ...q.keys()])].sort((x, y) => x.localeCompare(y, "en", { numeric: true }));
  const differ = (place) => { const [x, y] = [p.get(place), q.get(place)]; return !x ? `only ${b.name}` : !y ? `only ${a.name}` : x[3] !== y[3] ? "another request" : x[4] !== y[4] ? "another answer" : ""; };
  const first = places.findIndex(differ), others = places.filter(differ).length;
  if (first < 0) return [el("p", {}, `All ${places.length} calls are the same.`)];
  const at = (r, row, place) => (row ? el("a", { href: r.page + linkTo(place) }, `${row[1]}, ${usd(row[2])}`) : "");
  const rows = places.map((place) => [place, at(a, p.get(place), place), at(b, q.get(place), place), differ(place) || "same"]);
  const shown = table("Calls aligned", ["call", a.name, b.name, "difference"], rows.slice(0, 1000));
  shown.querySelectorAll("tbody tr").forEach((tr, i) => { if (differ(places[i])) tr.classList.add("differs"); });
  return [el("p", {}, `${others} of ${places.length} calls differ, first at ${places[first]}.`), shown];
}
