// The trajectory reader's keys and permalinks. Text is read from the page, never written as HTML.
const reader = document.getElementById("reader");
const VIEWS = ["tokens", "rendered", "raw"];
const GROUP_DELAY_MS = 700; // g may be the first of two keys that go to a place
let groupTimer = 0;

const isTyping = (target) => target.closest?.("input, textarea, select, [contenteditable]");
const blocks = () => [...document.querySelectorAll(".turns > .turn")];
const topOf = (element) => element.getBoundingClientRect().top;

function show(element) {
  if (!element) return;
  for (const other of document.querySelectorAll(".turn.current")) other.classList.remove("current");
  element.classList.add("current");
  element.scrollIntoView({ block: "start" });
  element.focus({ preventScroll: true });
}

function moveBlock(direction, filter = () => true) {
  const all = blocks().filter(filter);
  const current = document.querySelector(".turn.current");
  const edge = 70;
  const next = direction > 0
    ? all.find((b) => (current ? current.compareDocumentPosition(b) & Node.DOCUMENT_POSITION_FOLLOWING : topOf(b) > edge))
    : all.reverse().find((b) => (current ? current.compareDocumentPosition(b) & Node.DOCUMENT_POSITION_PRECEDING : topOf(b) < edge - 20));
  show(next);
}

function nextView() {
  const url = new URL(location.href);
  const now = url.searchParams.get("view") ?? VIEWS[0];
  url.searchParams.set("view", VIEWS[(VIEWS.indexOf(now) + 1) % VIEWS.length]);
  url.hash = "";
  location.href = url;
}

function go(url) { if (url) location.href = url; }

const KEYS = {
  j: () => moveBlock(1),
  k: () => moveBlock(-1),
  n: () => go(reader.dataset.next),
  p: () => go(reader.dataset.previous),
  e: () => moveBlock(1, (b) => b.classList.contains("tool-error")),
  t: nextView,
  y: () => document.getElementById("copy-link")?.click(),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector("dialog[open]")) return;
  if (groupTimer) { // the second key of a pair: the page's own script knows it
    clearTimeout(groupTimer);
    groupTimer = 0;
    return;
  }
  if (event.key === "g") { groupTimer = setTimeout(() => go(reader.dataset.group), GROUP_DELAY_MS); return; }
  const action = KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  event.stopPropagation();
  action();
}

function setLink(hash) {
  const url = new URL(location.href);
  url.hash = hash;
  history.replaceState(null, "", url);
  const copy = document.getElementById("copy-link");
  if (copy) copy.dataset.copy = url.href;
}

function openTarget() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let details = target.closest("details"); details; details = details.parentElement.closest("details")) details.open = true;
  for (const other of document.querySelectorAll(".tok.target")) other.classList.remove("target");
  if (target.classList.contains("tok")) target.classList.add("target");
  target.scrollIntoView({ block: "center" });
  setLink(target.id);
}

function onClick(event) {
  const token = event.target.closest(".tok[id]");
  if (!token || getSelection().toString()) return;
  setLink(token.id);
  openTarget();
}

function addKeysToHelp() {
  const list = document.querySelector("#help dl");
  const words = [["n p", "Next and previous rollout of the group"], ["j k", "Next and previous turn"], ["e", "Next tool error"],
    ["t", "Tokens, rendered, raw"], ["g", "The group"], ["y", "Copy a link to this place"]];
  for (const [keys, text] of words) {
    const name = document.createElement("dt");
    for (const key of keys.split(" ")) {
      const cap = document.createElement("kbd");
      cap.textContent = key;
      name.append(cap, " ");
    }
    const meaning = document.createElement("dd");
    meaning.textContent = text;
    list?.append(name, meaning);
  }
}

if (reader) {
  document.addEventListener("keydown", onKey, true);
  document.addEventListener("click", onClick);
  addEventListener("hashchange", openTarget);
  addKeysToHelp();
  openTarget();
  document.querySelector(".rollouts [aria-current]")?.scrollIntoView({ block: "nearest" });
}
