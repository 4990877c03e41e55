// The run page: opens the socket; pieces rendered by the server follow at most once a second.
import { LiveRun } from "./live.js";

const head = document.getElementById("run-head");
let timer = null, last = 0;

document.addEventListener("astro:hint", () => {
  if (timer) return;
  timer = setTimeout(() => {
    timer = null;
    last = Date.now();
    // A person about to press Stop must not lose the button under the pointer.
    document.body.dispatchEvent(new CustomEvent("astro:changed"));
  }, Math.max(0, last + 1000 - Date.now()));
});

if (head) new LiveRun(head.dataset.run, Number(head.dataset.revision));
