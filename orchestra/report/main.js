// The data, and where it goes. A live page asks its server for newer data.

let page = {}, texts = null;  // null: they are still being read
const OPENED_S = Date.now() / 1000;
const POLL_MS = 1000;

async function unpacked(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

function show(data) {
  page = data;
  texts = data.texts ?? texts;
  if (data.run) showRun();
  else if (data.runs) showRuns(data.runs, data.name);
  else $("left").replaceChildren(el("p", {}, `Waiting for the run: ${data.waiting}`));
}

// What a reader has open, chosen and scrolled to stays as it is when newer data comes.
function showNewer(data) {
  const focused = document.activeElement, href = focused?.getAttribute?.("href"), id = focused?.id;
  const scrolled = [$("right").scrollTop, ...[...document.querySelectorAll("#left > .scroll")].flatMap((e) => [e.scrollLeft, e.scrollTop])];
  show({ media: page.media, ...data, live: true });
  $("right").scrollTop = scrolled.shift();
  for (const e of document.querySelectorAll("#left > .scroll")) { e.scrollLeft = scrolled.shift() ?? 0; e.scrollTop = scrolled.shift() ?? 0; }
  const again = id ? $(id) : href ? document.querySelector(`a${focused.classList.contains("bar") ? ".bar" : ""}[href="${CSS.escape(href)}"]`) : null;
  again?.focus({ preventScroll: true });
}

async function follow() {
  const note = el("p", { id: "live", role: "status" }, "Live");
  document.body.prepend(note);
  let stamp = page.stamp, wasRunning = false;
  for (;;) {
    wasRunning ||= stamp.startsWith("running");
    if (wasRunning && stamp.startsWith("ended")) break;
    await new Promise((done) => setTimeout(done, POLL_MS));
    let answer;
    try { answer = await fetch(`data?${stamp}`); } catch { break; }
    updateInFlight();
    if (answer.status === 204) continue;
    if (!answer.ok) break;
    const data = await unpacked(await answer.text());
    if (data.run && !page.run) return location.reload();  // for its media
    stamp = data.stamp;
    showNewer(data);
  }
  note.textContent = "No longer live: the run has ended, or its server was stopped.";
}

addEventListener("hashchange", () => openPlace(true));
addEventListener("keydown", moved);

// After the next frame; a page in the background has none.
const painted = () => new Promise((done) => { requestAnimationFrame(() => setTimeout(done)); setTimeout(done, 1000); });

// What is read first is shown before the texts of all calls, which are long.
async function start() {
  show(await unpacked($("data").textContent));
  await painted();
  performance.mark("shown");
  texts = await unpacked($("texts").textContent);
  if (page.run) openPlace(placeOf(location.hash) !== "", "center");
  performance.mark("complete");
  if (page.live) follow();
}

start().catch((error) => {
  $("left").replaceChildren(el("p", { class: "bad" }, `This page cannot be shown: ${error}`));
  throw error;
});
