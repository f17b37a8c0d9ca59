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

// An equation: x_t and x_{t+1} are subscripts, x^* is a superscript.
const PART = /\{(?:[^{}]|\{[^{}]*\})*\}|[^\W_]+|\*/.source;  // braces may have braces in them
const TOKEN = new RegExp(`(\\d[\\d.]*|\\p{L}+|[^\\s\\p{L}\\p{N}_])(?:_(${PART}))?(?:\\^(${PART}))?`, "gu");
const math = (name, ...inside) => make(MATHML, name, name === "mo" ? { stretchy: "false" } : {}, inside);

function mathElements(notation) {
  const found = [...notation.matchAll(TOKEN)].map(([, base, sub, sup]) => {
    const leaf = math(/^\d/.test(base) ? "mn" : /^\p{L}+$/u.test(base) && base !== "Σ" ? "mi" : "mo", base);
    const parts = [sub, sup].filter(Boolean).map((part) => math("mrow", ...mathElements(part.replace(/^\{|\}$/g, ""))));
    return parts.length ? math(sub ? (sup ? "msubsup" : "msub") : "msup", leaf, ...parts) : leaf;
  });
  // A word and the number after it stand apart.
  const apart = (a, b) => a?.localName === "mi" && a.textContent.length > 1 && b.localName === "mn";
  return found.flatMap((e, i) => (apart(found[i - 1], e) ? [make(MATHML, "mspace", { width: "0.35em" }, []), e] : [e]));
}

function panelElement(p) {
  const equations = `${p.formula}\n${p.numbers}`.split("\n").filter(Boolean);
  const rows = p.rows.map((r) => [r.name, ...r.figures, [r.chosen ? "chosen" : "", r.note].filter(Boolean).join(" · ")]);
  const numbers = rows.length ? table("Numbers", ["", ...p.columns, ""], rows) : "";
  if (numbers) numbers.querySelectorAll("tbody tr").forEach((tr, i) => p.rows[i].chosen && tr.classList.add("chosen"));
  return el("div", { class: "panel" }, el("section", { class: "equation" }, el("h4", {}, `${p.place ? `${p.place} (Eq. ${p.equation})` : "Run"}: ${p.title}`),
    ...equations.map((e) => scroll("Equation", el("p", {}, math("math", ...mathElements(e))))), numbers, ...p.notes.map((note) => el("p", {}, note)),
    p.source ? folded(`computed in ${p.source}`, el("pre", { class: "code", tabindex: 0 }, page.run.code[p.source])) : ""));
}
