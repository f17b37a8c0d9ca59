// The calls of a run on a time axis. A lane is an attempt at a decision or a sub-task; its bars are calls.

function lanesOf(run) {
  const calls = clocked(run.tape, run.began_s ?? OPENED_S), lanes = [], byName = new Map();
  const lane = (prefix, about) => {
    const l = { name: prefix, calls: [], needs: [], steps: [], ...about };
    lanes.push(l); byName.set(prefix, l);
    return l;
  };
  for (const e of run.events) {
    const [t, j, n] = e.at;
    if (e.event === "decision")
      lane(`r${t}/main/a${n}`, { name: `r${t}/decision${n > 1 ? n : ""}`, round: t, kind: "decision", event: e, failed: !!e.mistake, why: e.mistake, title: `Round ${t}: ${decided(e)}` });
    else if (e.event === "subtask")
      lane(`r${t}/t${j}`, { round: t, kind: "subtask", event: e, id: e.subtask.id, needs: e.subtask.needs, title: `${e.subtask.id}: ${e.subtask.instruction}` });
    else if (e.event === "step") byName.get(`r${t}/t${j}`)?.steps.push(e);
    else if (e.event === "result") {
      const l = byName.get(`r${t}/t${j}`);
      if (l) Object.assign(l, { result: e, failed: e.status === "failed" || e.status === "blocked", why: e.error });
    }
  }
  for (const c of calls) {
    const parts = c.call.split("/"), name = parts.slice(0, parts[1] === "main" ? 3 : 2).join("/");
    const round = parseInt(parts[0].slice(1)) || 0, undecided = `Round ${round}: no decision`;
    const title = parts[1] === "main" ? undecided : { models: "the list of models that an endpoint serves" }[name] ?? name;
    const l = byName.get(name) ?? lane(name, { round, kind: "other", title });
    c.lane = l;
    c.bad = c.failed;
    l.calls.push(c);
  }
  for (const l of lanes) for (const s of l.steps.filter((s) => s.failed)) markStep(l, `${l.name}/s${s.at[2]}`);
  for (const l of lanes) if (l.calls.length) { l.from = Math.min(...l.calls.map((c) => c.from)); l.to = Math.max(...l.calls.map((c) => c.to)); }
  lanes.sort((a, b) => a.round - b.round || (a.kind !== "decision") - (b.kind !== "decision"));
  markPath(lanes);
  lanes.timed = calls.timed;
  lanes.span = Math.max(1e-9, ...calls.map((c) => c.to));
  if (page.live && isRunning(run) && calls.timed) addInFlight(run, lanes, calls);
  nameCalls(calls);
  lanes.calls = calls;
  return lanes;
}

// The call of a tool that failed, or the call that named no tool of the sub-task.
function markStep(l, name) {
  const tools = l.calls.filter((c) => c.call.startsWith(`${name}/`));
  for (const c of tools.length ? tools : l.calls.filter((c) => c.call === name)) c.bad = true;
}

const isRunning = (run) => run.state === "running";
const isAlone = (y) => y.subtasks?.[0]?.agent === "single";  // as of ReAct: nothing was decided

function decided(e) {
  if (e.mistake) return "not usable";
  if (e.decision.action === "complete") return `complete: ${e.decision.answer}`;
  return isAlone(e.decision) ? "one agent answers" : `delegate ${e.decision.subtasks.length}`;
}

// Each call has a name of its own, for links: a retried call has the number of its attempt.
function nameCalls(calls) {
  const seen = new Map();
  for (const c of calls) {
    const n = (seen.get(c.call) ?? 0) + 1;
    seen.set(c.call, n);
    c.name = n > 1 ? `${c.call}~${n}` : c.call;
  }
}

// Times from 0. Where the run stood still (it was resumed later), the gap is cut. Without times: the order on the tape.
function clocked(tape, began) {
  const timed = (page.live || tape.length > 0) && tape.every((c) => typeof c.began_s === "number");
  const calls = tape.map((c, i) => ({ ...c, from: timed ? c.began_s : i, to: timed ? c.began_s + c.took_s : i + 0.9 }));
  if (timed) {
    let cut = calls.length ? Math.min(...calls.map((c) => c.from)) : began, end = cut;
    for (const c of [...calls].sort((a, b) => a.from - b.from)) {
      if (c.from - end > 60) cut += c.from - end - 5;
      end = Math.max(end, c.to);
      c.from -= cut; c.to -= cut;
    }
    calls.cut = cut;
  }
  calls.timed = timed;
  return calls;
}

// The critical path: each decision, and in each round the lane that ended last, back along its needs.
function markPath(lanes) {
  const rounds = Map.groupBy(lanes.filter((l) => l.calls.length), (l) => l.round);
  for (const here of rounds.values()) {
    for (const l of here) if (l.kind === "decision") l.path = true;
    let last = here.filter((l) => l.kind === "subtask").sort((a, b) => b.to - a.to)[0];
    while (last && !last.path) {
      last.path = true;
      last = here.filter((l) => last.needs.includes(l.id)).sort((a, b) => b.to - a.to)[0];
    }
  }
}

const linkTo = (place) => "#" + encodeURI(place);
const kindOf = (c) => (c.kind === "chat" ? "chat" : c.call.split("/").length > 2 ? "tool" : "other");
const BAR = 18, LEAST = 4;

function timeline(lanes) {
  const narrow = innerWidth < 700, names = narrow ? 130 : 300;
  const width = Math.max(200, $("left").clientWidth - names - 50, Math.min(6000, lanes.calls.length * 14));
  const x = (t) => (t / lanes.span) * width;
  const list = el("ol", { class: "timeline", style: `--names: ${names}px; --width: ${width}px` }, axis(lanes, x));
  for (const l of lanes) list.append(laneElement(l, x, narrow ? 40 : 70));
  return scroll("Timeline", list);
}

function axis(lanes, x) {
  const [unit, name] = lanes.span < 360 ? [1, "s"] : lanes.span < 21600 ? [60, "min"] : [3600, "h"];
  const track = el("div", { class: "track" }), step = niceStep(lanes.span / 6 / unit);
  for (let t = 0; lanes.timed && x(t * unit) < x(lanes.span) - 45; t += step) track.append(el("span", { class: "tick", style: `left: ${x(t * unit)}px` }, `${+t.toFixed(3)} ${name}`));
  return el("li", { class: "lane axis" }, el("span", { class: "name" }, lanes.timed ? "Time" : "Order of ending"), track);
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((n) => n * power).find((s) => s >= least);
}

function laneElement(l, x, chars) {
  const rows = stacked(l.calls), track = el("div", { class: "track", style: `height: ${Math.max(1, rows.length) * BAR + 8}px` });
  if (l.path) track.append(el("span", { class: "path", style: `left: ${x(l.from)}px; width: ${Math.max(LEAST, x(l.to) - x(l.from))}px` }));
  rows.forEach((calls, row) => { for (const c of calls) track.append((c.bar = barElement(c, x, row))); });
  if (l.open >= 0) track.append(inFlightElement(l, x));
  l.label = el("a", { class: `name ${l.kind}${l.failed ? " bad" : ""}`, href: linkTo(l.name) }, (l.failed ? "✗ " : "") + short(l.title, chars));
  return el("li", { class: "lane" }, l.label, track);
}

function barElement(c, x, row) {
  const text = [c.call, c.kind, c.bad ? "failed" : "", seconds(c.took_s)].filter(Boolean).join(", ");
  const width = Math.max(c.bad ? 13 : LEAST, x(c.to) - x(c.from) - 1);
  return el("a", { class: `bar ${kindOf(c)}${c.bad ? " failed" : ""}`, href: linkTo(c.name), title: text, "aria-label": text,
    style: `left: ${x(c.from)}px; top: ${row * BAR + 3}px; width: ${width}px` }, c.bad ? "✗" : "");
}

// Calls that overlap are drawn below each other.
function stacked(calls) {
  const rows = [], ends = [];
  for (const c of [...calls].sort((a, b) => a.from - b.from)) {
    let row = ends.findIndex((end) => end <= c.from + 1e-6);
    if (row < 0) row = ends.length;
    ends[row] = c.to;
    (rows[row] ??= []).push(c);
  }
  return rows;
}

function legend(lanes) {
  const { calls } = lanes, key = (kind, text) => el("li", {}, el("span", { class: `key ${kind}` }), text);
  const others = calls.some((c) => kindOf(c) === "other") ? [key("other", "list of models")] : [];
  return el("ul", { class: "facts" }, key("chat", "model call"), key("tool", "tool"), ...others, key("failed", "✗ failed"), lanes.some((l) => l.open >= 0) ? key("open", "in flight") : "", key("path", "critical path"));
}

// ---- which sub-task needs which ----

const WIDE = 210, HIGH = 46;

function graph(lanes) {
  const nodes = lanes.filter((l) => l.kind === "subtask"), level = new Map(), rows = [];
  const of = (l, seen = []) => {
    if (!level.has(l)) level.set(l, 1 + Math.max(-1, ...nodes.filter((n) => l.needs.includes(n.id) && !seen.includes(n)).map((n) => of(n, [...seen, l]))));
    return level.get(l);
  };
  for (const l of nodes) { const c = of(l); rows[c] = (rows[c] ?? 0) + 1; l.cx = c * (WIDE + 50) + 10; l.cy = (rows[c] - 1) * (HIGH + 14) + 10; }
  const svg = shape("svg", { role: "group", "aria-label": "Which sub-task needs which", width: Math.max(...nodes.map((l) => l.cx)) + WIDE + 20, height: Math.max(...nodes.map((l) => l.cy)) + HIGH + 20 });
  for (const l of nodes) for (const n of nodes.filter((n) => l.needs.includes(n.id))) {
    const [a, b, c, d] = [n.cx + WIDE, n.cy + HIGH / 2, l.cx, l.cy + HIGH / 2];
    svg.append(shape("path", { class: "edge", d: `M${a},${b} C${a + 30},${b} ${c - 30},${d} ${c},${d}` }));
  }
  for (const l of nodes)
    svg.append(shape("a", { class: "node" + (l.failed ? " failed" : ""), href: linkTo(l.name), transform: `translate(${l.cx},${l.cy})` }, shape("title", {}, `${l.id}: ${l.event.subtask.instruction}`),
      shape("rect", { width: WIDE, height: HIGH, rx: 5 }), shape("text", { x: 8, y: 18 }, (l.failed ? "✗ " : "") + short(`${l.id} · ${l.event.subtask.backend}`, 26)),
      shape("text", { x: 8, y: 36, class: "faint" }, short(l.event.subtask.instruction, 28))));
  return scroll("Which sub-task needs which", svg);
}
