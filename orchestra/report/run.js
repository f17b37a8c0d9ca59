// The page of a run. First: question, answer, how it ended and why, its costs, what failed.

let shown = { lanes: [] };

function showRun() {
  const run = page.run, lanes = (shown = { lanes: lanesOf(run) }).lanes;
  lowered = null;
  document.title = short(run.question, 60);
  document.querySelector("header").replaceChildren(...outcome(run));
  const parts = [failures(run, lanes), costTables(run), media(page.media), searchBox(lanes), el("h2", { id: "timeline", tabindex: -1 }, "Timeline")];
  parts.push(lanes.length ? legend(lanes) : el("p", {}, "No call was made."));
  $("left").replaceChildren(...parts.filter(Boolean));
  if (lanes.length) {
    if (!lanes.timed) $("left").append(el("p", { class: "faint" }, "No times were recorded: calls in the order in which they ended."));
    $("left").append(timeline(lanes));
  }
  if (lanes.some((l) => l.needs.length)) $("left").append(el("h2", {}, "Which sub-task needs which"), graph(lanes));
  if (run.diff) $("left").append(el("h2", {}, "Changes"), folded("changes.diff", diff(run.diff)));
  openPlace(false);
}

function outcome(run) {
  const words = { answered: "Answered", fallback: "Ended early, with a fallback answer", stopped: "Stopped without an answer", interrupted: "Interrupted", running: "In progress" };
  const running = isRunning(run), state = words[run.state] ?? run.state;
  const sign = run.state === "answered" ? (run.why ? "! " : "✓ ") : running ? "… " : "✗ ";
  const parts = [el("h1", {}, run.question),
    el("p", { class: run.state === "answered" && run.why ? "state" : `state ${run.state}` }, el("strong", {}, sign + state), run.why && run.why !== run.state ? `: ${[run.why, run.advice].filter(Boolean).join("; ")}` : ""),
    run.origin ? el("p", {}, run.origin.replace("fork", "Fork") + ".") : "",
    el("p", { class: "answer" }, run.answer || (running ? "no answer yet" : "no answer")),
    ...run.next.map(([purpose, command]) => el("p", {}, purpose, ": ", el("code", {}, command))),
    facts(run.method, run.model, count(run.rounds, "round"), count(run.calls, "call"), count(run.tokens, "token"), usd(run.cost_usd), seconds(run.latency_s),
      run.failed_subtasks ? count(run.failed_subtasks, "failed sub-task") : "", date(run.date_s))];
  return parts.filter(Boolean);
}

// ---- what failed ----

const FAILURES = 5;  // the others are folded

function failures(run, lanes) {
  const ended = [], passing = [];
  for (const l of lanes) {
    const steps = l.steps.filter((s) => s.failed).map((s) => [`${l.name}/s${s.at[2]}`, s.observation]);
    const calls = l.calls.filter((c) => c.failed).map((c) => [c.name, c.why]);
    const words = [...steps, ...calls];
    if (l.failed) ended.push([l.name, l.title, l.why, ...words.slice(-1)]);
    else if (l.kind === "other" || !(l.result || l.event?.decision)) ended.push(...calls.slice(-1).map(([name, text]) => [name, l.title, text]));
    else passing.push(...words);
  }
  if (!ended.length && !passing.length) return null;
  const box = el("section", { class: "failures", "aria-labelledby": "failed" }, el("h2", { id: "failed" }, ended.length ? "What failed" : "Failed on the way"));
  const items = (rows) => el("ul", {}, ...rows), all = ended.map(failure);
  if (all.length) box.append(items(all.slice(0, FAILURES)));
  if (all.length > FAILURES) box.append(folded(`${all.length - FAILURES} more`, items(all.slice(FAILURES))));
  if (passing.length) box.append(folded(`${count(passing.length, "step")} failed${run.state === "answered" ? ", and the run went on" : ""}`, items(passing.slice(0, 100).map(([name, text]) => el("li", {}, el("a", { href: linkTo(placed(name)) }, name), ` ${short(text, 300)}`)))));
  return box;
}

function failure([name, what, reason, last]) {
  const words = last && !reason?.includes(last[1]) ? el("p", { class: "faint" }, "its last failure: ", el("a", { href: linkTo(placed(last[0])) }, last[0]), ` ${short(last[1], 300)}`) : "";
  return el("li", {}, el("a", { href: linkTo(name) }, name), what === name ? "" : `: ${short(what, 90)}`, reason ? el("blockquote", {}, short(reason, 500)) : "", words);
}

// The call of a step, or its sub-task: a step has no place of its own.
const placed = (name) => (shown.lanes.calls.some((c) => c.name === name) ? name : name.split("/").slice(0, 2).join("/"));

// ---- costs, media, changes ----

// The costs of the calls of each name, the dearest first; a local tool is not billed.
function costs(run, nameOf) {
  const groups = Object.entries(Object.groupBy(run.tape.filter((c) => c.billed), nameOf)).map(([name, calls]) => {
    const total = (key) => calls.reduce((s, c) => s + c[key], 0);
    return { name, calls: total("billed"), tokens: total("tokens"), cost: calls.some((c) => isNone(c.cost_usd)) ? null : total("cost_usd") };
  });
  return groups.sort((a, b) => (b.cost ?? 0) - (a.cost ?? 0) || a.name.localeCompare(b.name, "en", { numeric: true })).map((g) => [g.name, g.calls, g.tokens, usd(g.cost)]);
}

function costTables(run) {
  const columns = ["calls", "tokens", "cost"];
  const places = costs(run, (c) => c.call.split("/").slice(0, 2).join("/")).map(([name, ...rest]) => [el("a", { href: linkTo(name.replace(/main$/, "decision")) }, placeName(name)), ...rest]);
  if (!places.length) return null;
  const all = table("Costs by decision and sub-task", ["place", ...columns], places.slice(0, 12));
  return el("section", { class: "two", "aria-label": "Costs" },
    el("div", {}, el("h2", {}, "Cost by model"), table("Costs by model", ["model", ...columns], costs(run, (c) => c.who))),
    el("div", {}, el("h2", {}, "Cost by sub-task"), all, places.length > 12 ? folded(`${places.length - 12} more`, table("More costs", ["place", ...columns], places.slice(12))) : ""));
}

function placeName(name) {
  if (name.endsWith("/main")) return name.replace(/main$/, "decision");
  const lane = shown.lanes.find((l) => l.name === name);
  return lane?.id ? `${name} (${short(lane.id, 24)})` : name;
}

function media(rows) {
  if (!rows.length) return null;
  return el("section", { "aria-label": "Media" }, el("h2", {}, "Media"), el("div", { class: "media" }, ...rows.map(mediaElement)));
}

function mediaElement(m) {
  const here = m.url.startsWith("data:"), usable = here || (m.url && location.protocol === "file:");
  const of = { image: ["img", { src: m.url, alt: m.name }], audio: ["audio", { src: m.url, controls: true, "aria-label": m.name }], video: ["video", { src: m.url, controls: true, "aria-label": m.name }] };
  const name = usable && of[m.modality] ? el(...of[m.modality]) : el("div", { class: "missing" }, `${m.modality}: ${m.where}`);
  return el("figure", {}, name, el("figcaption", {}, here ? m.name : `${m.name} (${m.where})`));
}

function diff(text) {
  const kind = (line) => (/^(diff|index|---|\+\+\+) /.test(line) ? "file" : { "+": "added", "-": "removed", "@": "hunk" }[line[0]]);
  return el("pre", { class: "diff", tabindex: 0 }, ...text.split("\n").map((line) => el("span", { class: kind(line) ?? "" }, line + "\n")));
}

// ---- the place that is open ----

let detail = "";  // what the right part shows

const placeOf = (hash) => { try { return decodeURI(hash.slice(1)); } catch { return ""; } };

function openPlace(go, block = "nearest") {
  const name = placeOf(location.hash), { lanes } = shown;
  if (!lanes.calls || (go && name === "timeline")) return;
  const c = lanes.calls.find((c) => c.name === name);
  const l = c ? null : lanes.find((l) => l.name === name) ?? lanes.find((l) => name && l.name.startsWith(name + "/"));
  for (const e of document.querySelectorAll(".chosen:not(tr)")) { e.classList.remove("chosen"); e.removeAttribute("aria-current"); }
  const mark = c?.bar ?? l?.label;
  mark?.classList.add("chosen");
  mark?.setAttribute("aria-current", "true");
  const of = { decision: decisionText, subtask: subtaskText };
  const back = el("p", { class: "back" }, el("a", { href: "#timeline" }, "Back to the timeline"));
  const inside = () => (c ? callText(c) : l ? (of[l.kind] ?? otherText)(l) : hint());
  const newer = el("div", {}, back, ...(texts ? inside() : [title("Reading the texts …")]));
  if (go || newer.innerHTML !== detail) $("right").replaceChildren(newer);  // else, what is unfolded stays so
  detail = newer.innerHTML;
  if (!go) return;
  $("right").scrollTop = 0;
  mark?.scrollIntoView({ block, inline: "nearest" });
  $("place").focus({ preventScroll: innerWidth > 900 });
}

const otherText = (l) => [title(l.title), ...callLinks(l)];

// Arrow keys move in the timeline.
function moved(e) {
  const at = document.activeElement?.closest?.(".bar, .lane .name");
  if (e.key === "Escape" && $("right").contains(document.activeElement)) return document.querySelector(".bar.chosen, .name.chosen")?.focus();
  if (!at || e.metaKey || e.ctrlKey || e.altKey) return;
  const down = { ArrowDown: 1, ArrowUp: -1 }[e.key], right = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
  if (!down && !right) return;
  e.preventDefault();
  const all = down ? [...document.querySelectorAll("a.name")] : [...document.querySelectorAll(".timeline a")];
  const here = all.indexOf(down ? at.closest(".lane").querySelector(".name") : at);
  all[Math.max(0, Math.min(all.length - 1, here + (down ?? right)))].focus();
}
