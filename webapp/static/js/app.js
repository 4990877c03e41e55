// What every page has: theme, keys, tables, messages, confirmation, times that go on.
const isTyping = (target) => target.closest?.("input, textarea, select, [contenteditable]");

function setUpTheme() {
  const root = document.documentElement;
  for (const button of document.querySelectorAll("[data-theme-toggle]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      try { localStorage.setItem("theme", root.dataset.theme); } catch { /* this page only */ }
      document.dispatchEvent(new CustomEvent("astro:theme"));
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new CustomEvent("astro:theme")));
}

const PLACES = { h: "home", r: "runs", d: "datasets", l: "leaderboards", n: "launch" };
let afterG = 0;

function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && isTyping(event.target)) return event.target.blur();
  if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
  if (Date.now() - afterG < 1200 && PLACES[event.key]) {
    afterG = 0;
    const link = document.querySelector(`[data-place="${PLACES[event.key]}"]`);
    if (link) { event.preventDefault(); link.click(); }
    return;
  }
  if (event.key === "g") { afterG = Date.now(); return; }
  if (event.key === "/") {
    const search = document.querySelector("[data-search]");
    if (search) { event.preventDefault(); search.focus(); search.select?.(); }
  } else if (event.key === "?") document.getElementById("help")?.showModal();
  else if (["j", "k", "ArrowDown", "ArrowUp", "Enter"].includes(event.key)) moveRow(event);
}

// Rows with data-href in table[data-rows]: j and k (or arrows once a row is selected), Enter opens.
function moveRow(event) {
  const rows = [...document.querySelectorAll("table[data-rows] tr[data-href]")].filter((row) => row.offsetParent);
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("selected"));
  if (event.key.startsWith("Arrow") && at < 0) return;
  if (event.key === "Enter") {
    if (at >= 0 && !event.target.closest("a, button, summary")) location.href = rows[at].dataset.href;
    return;
  }
  event.preventDefault();
  const next = Math.min(Math.max(at + (["j", "ArrowDown"].includes(event.key) ? 1 : -1), 0), rows.length - 1);
  rows[at]?.classList.remove("selected");
  rows[at]?.removeAttribute("aria-selected");
  rows[next].classList.add("selected");
  rows[next].setAttribute("aria-selected", "true");
  rows[next].scrollIntoView({ block: "nearest" });
}

function onClick(event) {
  const close = event.target.closest("[data-close]");
  if (close) return close.closest(".message, dialog")?.remove?.call(close.closest(".message") ?? { remove() { close.closest("dialog").close(); } });
  const opener = event.target.closest("[data-dialog]");
  if (opener) return document.getElementById(opener.dataset.dialog)?.showModal();
  const copy = event.target.closest("[data-copy]");
  if (copy) return copyText(copy);
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  const row = event.target.closest("tr[data-href]");
  if (row && !event.target.closest("a, button, input, label, summary") && !getSelection().toString()) {
    if (event.ctrlKey || event.metaKey) open(row.dataset.href, "_blank", "noopener");
    else location.href = row.dataset.href;
  }
}

async function copyText(button) {
  const before = button.textContent;
  try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = "Copied"; }
  catch { button.textContent = "Press Ctrl-C"; getSelection().selectAllChildren(button.parentElement); }
  setTimeout(() => { button.textContent = before; }, 1600);
}

function onSubmit(event) {
  const form = event.target;
  const question = event.submitter?.dataset.confirm ?? form.dataset.confirm;
  if (question && !confirm(question)) return event.preventDefault();
  // A second click would send the form again; the page leaves anyway.
  if (form.method === "post") setTimeout(() => { for (const b of form.querySelectorAll("button[type=submit], button:not([type])")) b.disabled = true; }, 0);
}

export function ago(seconds) {
  if (seconds < 1) return "now";
  if (seconds < 90) return `${Math.floor(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} d ago`;
}

function tick() {
  for (const time of document.querySelectorAll("time[data-ago]")) {
    const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
    const text = time.dataset.ago === "until" ? (seconds < 0 ? `${Math.ceil(-seconds)} s left` : "over") : ago(seconds);
    if (time.textContent !== text) time.textContent = text;
  }
}

// A page nobody sees does not ask; a table a person is walking through does not change under the cursor.
function onPoll(event) {
  const poller = event.target.closest?.("[data-poll]");
  if (poller && event.detail.elt === poller && (document.hidden || poller.querySelector("tr.selected, details[open]") || poller.contains(document.activeElement))) event.preventDefault();
}

// What scrolls can be reached by Tab; not every browser does that by itself.
function reachScrollers() {
  for (const box of document.querySelectorAll(".table-wrap, .gridwrap, .rollouts, .launch .side .card, pre")) {
    const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
    if (scrolls) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

setUpTheme();
reachScrollers();
addEventListener("resize", reachScrollers);
document.addEventListener("htmx:afterSettle", reachScrollers);
document.addEventListener("htmx:beforeRequest", onPoll);
document.addEventListener("keydown", onKey);
document.addEventListener("click", onClick);
document.addEventListener("submit", onSubmit);
addEventListener("pageshow", () => { for (const b of document.querySelectorAll("form button:disabled:not([data-off])")) b.disabled = false; });
setInterval(tick, 1000);
