// The data, and where it goes. A live page asks its server for newer data.

let page = {}, texts = [];
const POLL_MS = 1000;

async function unpacked(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

function show(data, isFirst) {
  [page, texts] = [data, data.texts];
  if (data.run) showRun(isFirst);
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
  const again = id ? $(id) : href ? document.querySelector(`a[href="${CSS.escape(href)}"]`) : null;
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
unpacked($("data").textContent).then((data) => {
  show(data, true);
  performance.mark("shown");
  if (data.live) follow();
}).catch((error) => {
  $("left").replaceChildren(el("p", { class: "bad" }, `This page cannot be shown: ${error}`));
  throw error;
});
