// The live tail: when the run says its log grew, fetch the lines after the last one shown.
const MAX_LINES = 3000;
const list = document.getElementById("log");
const follow = document.getElementById("follow");
const news = document.getElementById("log-new");
const filters = new URLSearchParams(location.search);
let busy = false, again = false;

const atEnd = () => list.scrollTop + list.clientHeight >= list.scrollHeight - 30;

async function tail() {
  if (busy) { again = true; return; }
  busy = true;
  try {
    const query = new URLSearchParams({ level: filters.get("level") ?? "", q: filters.get("q") ?? "", after: list.lastElementChild?.dataset.id ?? "0" });
    const reply = await fetch(`${list.dataset.url}?${query}`);
    if (!reply.ok) throw new Error(`HTTP ${reply.status}`);
    const stay = !follow?.checked || !atEnd();
    const before = list.childElementCount;
    list.insertAdjacentHTML("beforeend", await reply.text()); // escaped by the server
    const added = list.childElementCount - before;
    if (added) document.getElementById("log-empty")?.remove();
    while (list.childElementCount > MAX_LINES) list.firstElementChild.remove();
    if (!stay) list.scrollTop = list.scrollHeight;
    if (added) news.textContent = stay ? "new lines below" : "";
  } catch (error) { console.warn("log:", error); }
  busy = false;
  if (again) { again = false; setTimeout(tail, 400); }
}

if (list) {
  list.scrollTop = list.scrollHeight;
  follow?.addEventListener("change", () => { if (follow.checked) { list.scrollTop = list.scrollHeight; news.textContent = ""; } });
  if (!filters.has("before")) document.addEventListener("astro:hint", (event) => { const { dirty } = event.detail; if (!dirty || dirty.includes("logs") || dirty.includes("log")) tail(); });
}
