// Elements and texts. Text is set as text, never as markup: what a model wrote stays what it is.
// The page's policy refuses the attribute `style`, so styles are set as properties.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const MATHML = "http://www.w3.org/1998/Math/MathML";

function make(space, name, about, inside) {
  const e = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(about))
    if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
    else if (key === "style") e.style.cssText = value;
    else if (value !== null && value !== false) e.setAttribute(key, value === true ? "" : value);
  e.append(...inside.filter((x) => x !== null && x !== undefined && x !== ""));
  return e;
}
const el = (name, about = {}, ...inside) => make(null, name, about, inside);
const shape = (name, about = {}, ...inside) => make(SVG, name, about, inside);

// ---- texts ----

const isNone = (v) => v === null || v === undefined;
const usd = (v) => (isNone(v) ? "cost unknown" : "USD\u00a0" + (v && v < 0.01 ? v.toFixed(5) : v.toFixed(4)));
const count = (n, what) => `${isNone(n) ? "?" : n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
const listed = (names) => (names.length > 1 ? names.slice(0, -1).join(", ") + " and " + names.at(-1) : names.join(""));

function seconds(v) {
  if (isNone(v)) return "";
  if (v < 120) return `${v.toFixed(v < 10 ? 2 : 1)} s`;
  return v < 7200 ? `${Math.round(v / 60)} min` : `${(v / 3600).toFixed(1)} h`;
}

function date(s) {
  if (!s) return "";
  const d = new Date(s * 1000), two = (n) => String(n).padStart(2, "0");
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}`;
}

// The beginning of a text in one line, cut at a space where there is one.
function short(text, n) {
  text = String(text ?? "").slice(0, 4 * n).replace(/\s+/g, " ").trim();
  if (text.length <= n) return text;
  const cut = text.slice(0, n - 1), space = cut.lastIndexOf(" ");
  return (space > n / 2 ? cut.slice(0, space) : cut) + "…";
}

// ---- parts of a page ----

const facts = (...texts) => el("ul", { class: "facts" }, ...texts.filter(Boolean).map((t) => el("li", {}, t)));
const folded = (title, ...inside) => el("details", {}, el("summary", {}, title), ...inside);
const section = (title, text) => (text ? [el("h3", {}, title), el("pre", {}, ...marked(String(text)))] : []);
const json = (value) => el("pre", {}, ...marked(JSON.stringify(value, null, 1)));

// A region that scrolls sideways can be reached by the keyboard.
const scroll = (label, ...inside) => el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": label }, ...inside);

function table(label, columns, rows) {
  const kind = (c) => (typeof c === "number" ? "number" : null), text = (c) => (typeof c === "number" ? c.toLocaleString("en") : c);
  const head = columns.map((c, i) => el(c ? "th" : "td", { scope: c ? "col" : null, class: kind(rows[0]?.[i]) }, c));
  const body = rows.map((cells) => el("tr", {}, ...cells.map((c, i) => el(i ? "td" : "th", { scope: i ? null : "row", class: kind(c) }, text(c)))));
  return scroll(label, el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)));
}

// ---- panels of equations ----

// The page makes its own elements of a panel, with these names and without attributes.
const OF_PANEL = new Set("section h4 p code table thead tbody tr th td".split(" "));
const OF_MATH = new Set("math mrow mi mn mo msub msup msubsup".split(" "));

function copied(node) {
  if (node.nodeType === Node.TEXT_NODE) return node.data;
  const name = node.localName, inside = [...node.childNodes].map(copied);
  if (OF_MATH.has(name)) return make(MATHML, name, name === "mo" ? { stretchy: "false" } : {}, spaced(inside));
  if (!OF_PANEL.has(name)) return el("span", {}, ...inside);
  const chosen = name === "tr" && node.className === "chosen";
  if (name === "th" && !node.textContent) return el("td");
  return el(name, { class: chosen ? "chosen" : null, scope: name === "th" ? node.getAttribute("scope") : null }, ...inside);
}

// A word and the number after it stand apart.
function spaced(nodes) {
  const apart = (a, b) => a?.localName === "mi" && a.textContent.length > 1 && b.localName === "mn";
  return nodes.flatMap((b, i) => (apart(nodes[i - 1], b) ? [make(MATHML, "mspace", { width: "0.35em" }, []), b] : [b]));
}

function panelElement(panel) {
  const parsed = new DOMParser().parseFromString(texts[panel.html], "text/html");
  const wide = el("div", { class: "panel" }, ...[...parsed.body.childNodes].map(copied));
  for (const t of wide.querySelectorAll("table")) t.replaceWith(scroll("Numbers", t.cloneNode(true)));
  for (const p of wide.querySelectorAll("p")) if (p.querySelector("math")) p.replaceWith(scroll("Equation", p.cloneNode(true)));
  const code = page.run.code[panel.source], said = wide.querySelector("p:has(> code)");
  if (code) said?.replaceWith(folded(`computed in ${panel.source}`, el("pre", { class: "code", tabindex: 0 }, code)));
  return wide;
}
