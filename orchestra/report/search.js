// Search in all texts of a run: prompts, replies, observations, decisions.

const HITS = 100;
let needle = "", lowered = null;

// The text with what was searched for marked.
function marked(text) {
  if (!needle) return [text];
  const low = text.toLowerCase(), parts = [];
  let at = 0;
  for (let i = low.indexOf(needle); i >= 0 && parts.length < 2000; i = low.indexOf(needle, at)) {
    parts.push(text.slice(at, i), el("mark", {}, text.slice(i, i + needle.length)));
    at = i + needle.length;
  }
  return [...parts, text.slice(at)];
}

function searchBox(lanes) {
  const box = el("input", { type: "search", id: "search", value: needle, autocomplete: "off" });
  const found = el("div", { id: "found", role: "status" });
  let timer;
  const draw = () => { needle = box.value.trim().toLowerCase(); found.replaceChildren(...(needle ? hits(lanes) : [])); dim(lanes); };
  box.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => { draw(); openPlace(false); }, 150); });
  if (needle) queueMicrotask(draw);
  return el("div", { class: "search" }, el("label", { for: "search" }, "Search all texts"), box, found);
}

function hits(lanes) {
  if (!texts) return [];
  lowered ??= texts.map((t) => t.toLowerCase());
  const numbers = new Set(lowered.flatMap((t, n) => (t.includes(needle) ? [n] : [])));
  const rows = [];
  for (const l of lanes) {
    const all = JSON.stringify([l.event, l.steps, l.result]), i = all.toLowerCase().indexOf(needle);
    l.hit = i >= 0;
    if (l.hit) rows.push([l.name, all, i]);
    for (const c of l.calls) {
      const n = [...c.asked.map(([, n]) => n), c.got].findLast((n) => numbers.has(n));
      c.hit = n !== undefined || c.call.toLowerCase().includes(needle);
      if (n !== undefined) rows.push([c.name, texts[n], lowered[n].indexOf(needle)]);
    }
  }
  const more = rows.length > HITS ? ` The first ${HITS}:` : "";
  return [el("p", { class: "faint" }, `${count(rows.length, "place")} with this text.${more}`),
    el("ul", { class: "hits" }, ...rows.slice(0, HITS).map(([name, text, i]) =>
      el("li", {}, el("a", { href: linkTo(name) }, name), " … ", ...marked(text.slice(Math.max(0, i - 40), i + 80).replace(/\s+/g, " ")), " …")))];
}

function dim(lanes) {
  for (const l of lanes) for (const c of l.calls) c.bar?.classList.toggle("dim", !!needle && !c.hit);
}
