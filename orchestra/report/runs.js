// The page of a folder: a row for each run, the methods against each other, two runs compared.

const COLUMNS = { name: "run", state: "state", why: "why", answer: "answer", expected: "expected", right: "right", cost_usd: "cost, USD", date_s: "date", question: "question", method: "method", model: "model",
  category: "category", level: "level", calls: "calls", tokens: "tokens", latency_s: "time, s" };
const LONG = { question: 120, answer: 120, why: 160 };
const FILTERS = ["state", "method", "model", "category", "level", "right"];
const SHARED = ["question", "method", "model", "category", "level", "expected"];  // no column if all runs have the same
const ROWS = 200;  // of the table at first

function showRuns(runs, name) {
  document.title = name;
  document.body.className = "runs";
  document.querySelector("header").replaceChildren(el("h1", {}, `${count(runs.filter((r) => r.page).length, "run")} in ${name}`), counts(runs));
  const parts = runs.some((r) => typeof r.right === "boolean") ? [el("h2", {}, `Methods, by ${listed([...new Set(runs.map((r) => r.rule).filter(Boolean))])} of the replies`), ...methods(runs)] : [];
  $("left").replaceChildren(...parts, el("h2", {}, "Runs"), ...runsTable(runs));
  $("right").replaceChildren(...compareHint());
}

// Each row counts once: it has an answer or none, and of these it has one state.
function counts(runs) {
  const states = (rows) => Object.entries(Object.groupBy(rows, (r) => (r.page ? r.state : "without a run"))).map(([state, of]) => `${of.length} ${state}`).join(", ");
  const counted = (words, rows) => (rows.length ? `${rows.length} ${words}: ${states(rows)}` : "");
  const costs = runs.filter((r) => r.page).map((r) => r.cost_usd);
  return facts(counted("with an answer", runs.filter((r) => r.answer)), counted("without an answer", runs.filter((r) => !r.answer)), usd(costs.some(isNone) ? null : costs.reduce((s, c) => s + c, 0)));
}

// ---- the table ----

function runsTable(runs) {
  const filled = Object.keys(COLUMNS).filter((k) => runs.some((r) => !isNone(r[k]) && r[k] !== ""));
  const same = filled.filter((k) => SHARED.includes(k) && runs.length > 1 && runs.every((r) => r[k] === runs[0][k]));
  const columns = filled.filter((k) => !same.includes(k));
  const state = { sorted: "name", down: false, limit: ROWS };
  const text = el("input", { type: "search", id: "filter", autocomplete: "off", oninput: () => draw() });
  const filters = FILTERS.filter((k) => columns.includes(k)).map((k) => [k, choices(runs, k, () => draw())]).filter(([, s]) => s);
  const heads = columns.map((k) => el("th", { scope: "col" }, el("button", { type: "button", onclick: () => { state.down = state.sorted === k && !state.down; state.sorted = k; draw(); } }, COLUMNS[k])));
  const body = el("tbody"), total = el("span", { class: "faint", role: "status" }), elements = new Map();
  const more = el("button", { type: "button", class: "more", onclick: () => { state.limit = Infinity; draw(); } }, "");
  const row = (r) => { if (!elements.has(r)) elements.set(r, rowElement(r, columns)); return elements.get(r); };
  for (const r of runs) r.low = columns.map((k) => r[k]).join("\n").toLowerCase();

  function draw() {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = runs.filter((r) => filters.every(([k, s]) => !s.value || String(r[k]) === s.value) && words.every((w) => r.low.includes(w)));
    kept.sort((a, b) => ordered(a[state.sorted], b[state.sorted], state.down));
    columns.forEach((k, i) => (k === state.sorted ? heads[i].setAttribute("aria-sort", state.down ? "descending" : "ascending") : heads[i].removeAttribute("aria-sort")));
    total.textContent = `${kept.length.toLocaleString("en")} of ${count(runs.length, "row")}`;
    more.hidden = kept.length <= state.limit;
    more.textContent = `Show all ${kept.length}`;
    body.replaceChildren(...kept.slice(0, state.limit).map(row));
  }
  draw();
  const labelled = (name, e) => el("label", {}, name, e);
  const head = el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "compare"), ...heads));
  const all = same.length ? facts("of all:", ...same.map((k) => `${COLUMNS[k]} ${short(runs[0][k], 200)}`)) : "";
  return [all, el("div", { class: "filters" }, labelled("Filter by words", text), ...filters.map(([k, s]) => labelled(COLUMNS[k], s)), total), scroll("Runs", el("table", { class: "all" }, head, body)), more];
}

function choices(runs, key, draw) {
  const values = [...new Set(runs.map((r) => String(r[key] ?? "")))].filter(Boolean).sort();
  return values.length > 1 && values.length < 100 ? el("select", { onchange: draw }, el("option", { value: "" }, "all"), ...values.map((v) => el("option", {}, v))) : null;
}

// Numbers by size, texts by letters and numbers in them; what is unknown comes last.
function ordered(a, b, down) {
  if (isNone(a) || isNone(b)) return isNone(a) - isNone(b);
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return down ? -order : order;
}

function rowElement(r, columns) {
  const box = r.outline ? el("input", { type: "checkbox", "aria-label": `compare ${r.name}`, onchange: (e) => choose(r, e.target) }) : "";
  return el("tr", {}, el("td", {}, box), ...columns.map((k) => cell(r, k)));
}

function cell(r, k) {
  const made = cellOf(r, k, r[k]);
  made.dataset.label = COLUMNS[k];  // before its value, where the page is narrow
  return made;
}

function cellOf(r, k, v) {
  if (k === "name") return el("th", { scope: "row" }, r.page ? el("a", { href: r.page }, r.name) : r.name);
  if (k === "state") return el("td", { class: `state-${v}` }, ({ answered: "✓ ", running: "… " }[v] ?? "✗ ") + v);
  if (k === "right") return el("td", { class: "line" }, isNone(v) ? "" : r.unfinished ? "✗ no answer" : v === true ? "✓ right" : v === false ? "✗ wrong" : String(v));
  if (k === "method") v = v?.split(":").pop();  // of FILE.py:NAME, the name
  if (k === "date_s") return el("td", { class: "date" }, date(v));
  if (typeof v === "number") return el("td", { class: "number" }, Number.isInteger(v) ? v.toLocaleString("en") : k === "latency_s" ? v.toFixed(1) : String(+v.toPrecision(4)));
  return el("td", { class: LONG[k] ? "long" : null }, isNone(v) ? "" : short(v, LONG[k] ?? 60));
}

// ---- methods: right answers against cost ----

function methods(runs) {
  const scored = runs.filter((r) => typeof r.right === "boolean");
  const byName = Map.groupBy(scored, nameOf), isShared = (r) => new Set(byName.get(nameOf(r)).map(sweepOf)).size > 1;
  const groups = [...Map.groupBy(scored, (r) => (isShared(r) ? `${nameOf(r)} · ${sweepOf(r)}` : nameOf(r)))].map(([name, rows]) => {
    const made = rows.filter((r) => r.page), costs = made.map((r) => r.cost_usd);
    return { tokens: made.length ? Math.round(made.reduce((s, r) => s + r.tokens, 0) / made.length) : "unknown",
      name, n: rows.length, right: rows.filter((r) => r.right).length / rows.length, none: rows.filter((r) => !r.answer).length, open: rows.filter((r) => r.unfinished).length,
      cost: costs.length && !costs.some(isNone) ? costs.reduce((s, c) => s + c, 0) / costs.length : null };
  }).sort((a, b) => b.right - a.right || a.name.localeCompare(b.name));
  const priced = groups.some((g) => g.cost) ? groups.filter((g) => g.cost !== null) : [];
  for (const g of priced) g.front = !priced.some((h) => h !== g && h.cost <= g.cost && h.right >= g.right && (h.cost < g.cost || h.right > g.right));
  const rows = groups.map((g, i) => [`${i + 1}. ${g.name}`, `${Math.round(100 * g.right)} %`, g.n, g.none, g.open, g.tokens, g.cost === null ? "unknown" : usd(g.cost), ...(priced.length ? [g.front ? "yes" : ""] : [])]);
  const columns = ["method", "right", "questions", "no answer", "unfinished", "mean tokens", "mean cost", ...(priced.length ? ["Pareto front"] : [])];
  return [table("Methods", columns, rows), priced.length ? chart(groups, priced) : ""];
}

const nameOf = (r) => [r.method ?? "?", r.model ?? "?"].join(" · ");
const sweepOf = (r) => (r.name.includes("/runs/") ? r.name.split("/runs/")[0] : "");

// The points have the numbers of the table; numbers that would overlap stand next to each other.
function chart(groups, priced) {
  const most = Math.max(...priced.map((g) => g.cost)) * 1.1, x = (c) => 50 + (c / most) * 480, y = (r) => 215 - r * 190;
  const front = priced.filter((g) => g.front).sort((a, b) => a.cost - b.cost), labels = [];
  const free = (left, top) => { while (labels.some(([l, t]) => Math.abs(l - left) < 18 && Math.abs(t - top) < 14)) left += 18; labels.push([left, top]); return left; };
  const tick = (c) => shape("text", { class: "faint", x: x(c), y: 238, "text-anchor": c ? "end" : "start" }, usd(c));
  return el("figure", {}, shape("svg", { viewBox: "0 0 560 245", class: "chart", role: "img", "aria-label": "Right answers against mean cost; the table above has the numbers" },
    ...[0, 0.5, 1].flatMap((r) => [shape("line", { class: "grid", x1: 50, x2: 530, y1: y(r), y2: y(r) }), shape("text", { class: "faint", x: 44, y: y(r) + 4, "text-anchor": "end" }, `${100 * r} %`)]),
    shape("polyline", { class: "front", points: front.map((g) => `${x(g.cost)},${y(g.right)}`).join(" ") }), tick(0), tick(most),
    ...priced.flatMap((g) => [shape("circle", { class: g.front ? "on-front" : "point", cx: x(g.cost), cy: y(g.right), r: 6 }), shape("text", { x: free(x(g.cost) + 9, y(g.right) - 6), y: y(g.right) - 6 }, String(groups.indexOf(g) + 1))])),
    el("figcaption", {}, "Right answers against the mean cost of a run. The numbers are those of the table; the line is the Pareto front."));
}
