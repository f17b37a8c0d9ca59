// What the right part shows of a decision, a sub-task or a call.

const title = (text, bad) => el("h2", { id: "place", tabindex: -1, class: bad ? "bad" : null }, text);
const panelsAt = (place) => page.run.panels.filter((p) => p.place === place).map(panelElement);

function hint() {
  return [title("Details"), el("p", {}, "Choose a decision, a sub-task or a call. Each has a link of its own."),
    el("p", { class: "faint" }, "In the timeline, the keys ← → go to the call before and after, ↑ ↓ to the line above and below. Enter opens, Escape goes back."),
    ...why("About the equations", panelsAt(""))];
}

// ---- a decision ----

function decisionText(l) {
  const e = l.event, y = e.decision;
  return [title(`Decision of round ${l.round}${e.at[2] > 1 ? `, attempt ${e.at[2]}` : ""}`, l.failed), facts(l.name, usd(e.cost_usd), count(l.calls.length, "call")),
    ...(y ? sentences(y, l.round) : [el("p", { class: "bad" }, "The reply was not usable, and the main agent was told why: " + e.mistake)]),
    ...why("Why, in equations", panelsAt(`r${l.round}`)), ...callLinks(l),
    y ? folded("The decision as JSON", json(y)) : "", e.reply ? folded("The reply as it came", el("pre", {}, ...marked(e.reply))) : ""];
}

function sentences(y, round) {
  const because = y.reasoning ? [el("p", {}, "Its reason: ", el("q", {}, ...marked(y.reasoning)))] : [];
  if (y.action === "complete") return [el("p", {}, "The main agent completed the run. Its answer: ", el("strong", {}, ...marked(y.answer))), ...because];
  const instead = y.fallback ? [el("p", { class: "bad" }, "No decision was usable, so the program chose: " + y.fallback)] : [];
  const what = isAlone(y) ? "One agent answers the whole question:" : `The main agent delegated ${count(y.subtasks.length, "sub-task")}:`;
  return [...instead, el("p", {}, what), el("ul", {}, ...y.subtasks.map((u) => delegated(u, round))), ...because];
}

function delegated(u, round) {
  const ran = shown.lanes.find((l) => l.kind === "subtask" && l.id === u.id && l.round >= round);
  const name = ran ? el("a", { href: linkTo(ran.name) }, u.id) : `${u.id} (did not run)`;
  const who = u.backend ? ` to ${u.backend}` : "", needs = u.needs.length ? `, after ${listed(u.needs)}` : "";
  const tools = u.tools?.length ? ` with ${listed(u.tools)}` : "";
  return el("li", {}, name, `${who}${tools}${needs}: `, ...marked(u.instruction));
}

// ---- a sub-task ----

function subtaskText(l) {
  const u = l.event.subtask, z = l.result;
  const tools = u.tools?.length ? `with ${listed(u.tools)}` : "without tools";
  const ended = z ? `It ended as ${z.status}${z.cause ? ` (${z.cause})` : ""}.` : page.live && isRunning(page.run) ? "It has not ended yet." : "It did not end.";
  return [title(`${u.id} in round ${l.round}`, l.failed), facts(l.name, z ? usd(z.cost_usd) : usd(sum(l.calls)), seconds(z?.timing?.latency_s), isNone(l.event.share_usd) ? "" : `share of the budget ${usd(l.event.share_usd)}`),
    el("p", {}, `${u.backend} worked on it as a ${u.agent || "sub-agent"}${u.agent ? " agent" : ""} ${tools}. ${ended}`),
    ...section("Why it failed", z?.error), ...section("Answer", z?.answer), ...section("Summary", z?.summary), ...section("Instruction", u.instruction), ...section("Context", u.context),
    ...why("Why this model and these tools", panelsAt(l.name)), ...steps(l), ...callLinks(l), folded("The sub-task as JSON", json(u))];
}

const sum = (calls) => (calls.some((c) => c.cost_usd === null) ? null : calls.reduce((s, c) => s + (c.cost_usd ?? 0), 0));
const why = (name, panels) => (panels.length ? [el("h3", {}, name), ...panels] : []);

function steps(l) {
  if (!l.steps.length) return [];
  return [el("h3", {}, "Steps"), el("ol", { class: "chat" }, ...l.steps.map((s) => el("li", {},
    el("div", { class: "message assistant" }, el("h4", {}, `Step ${s.at[2]}: ${s.action}`), s.memory ? el("p", {}, ...marked(s.memory)) : "", Object.keys(s.params).length ? json(s.params) : ""),
    s.observation ? el("div", { class: `message ${s.failed ? "failed" : "tool"}` }, el("h4", {}, s.failed ? "✗ It failed" : "Observation"), el("pre", {}, ...marked(s.observation))) : "")))];
}

function callLinks(l) {
  if (!l.calls.length) return [];
  return [el("h3", {}, "Calls"), el("ul", {}, ...l.calls.map((c) => el("li", {}, el("a", { href: linkTo(c.name), class: c.bad ? "bad" : null }, c.name), ` ${c.model ?? c.kind} ${seconds(c.took_s)}${c.bad ? " ✗ failed" : ""}`)))];
}

// ---- a call ----

const FOLD = 600;  // a longer message is folded if a later one follows

function callText(c) {
  const tokens = c.tokens ? `${count(c.input_tokens, "token")} in, ${c.output_tokens} out` : "";
  const last = c.asked.length - 1;
  return [title(c.name, c.bad), facts(c.kind, c.model, seconds(c.took_s), tokens, c.kind === "chat" ? usd(c.cost_usd) : ""),
    c.lane ? el("p", {}, "Part of ", el("a", { href: linkTo(c.lane.name) }, short(c.lane.title, 80))) : "",
    ...(c.failed ? [el("h3", { class: "bad" }, "What went wrong"), el("pre", {}, ...marked(c.why))] : []),
    el("h3", {}, c.kind === "chat" ? "Prompt and reply" : "Request and result"),
    el("ol", { class: "chat" }, ...c.asked.map(([role, n], i) => message(role, texts[n], i < last)), message(c.kind === "chat" ? "reply" : "result", texts[c.got], false, c.failed))];
}

function message(role, text, fold, failed) {
  const kind = failed ? "failed" : { reply: "assistant", result: "tool" }[role] ?? role;
  const body = el("pre", {}, ...marked(text));
  const heading = el("h4", {}, failed ? "✗ " + role : role);
  if (!fold || text.length < FOLD || (needle && text.toLowerCase().includes(needle))) return el("li", { class: "message " + kind }, heading, body);
  return el("li", { class: "message " + kind }, heading, folded(`${count(text.length, "character")}: ${short(text, 60)}`, body));
}
