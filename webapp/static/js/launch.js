// Keeps the place on the page when a stage is added, moved or removed, and warns before work is lost.
const form = document.getElementById("recipe");
let changed = false;
form?.addEventListener("input", () => { changed = true; });
form?.addEventListener("submit", () => {
  changed = false;
  try { sessionStorage.setItem("launch-scroll", String(scrollY)); } catch { /* the page starts at its top */ }
});
addEventListener("beforeunload", (event) => { if (changed) event.preventDefault(); });
try {
  const at = sessionStorage.getItem("launch-scroll");
  sessionStorage.removeItem("launch-scroll");
  const firstError = document.querySelector("#recipe [aria-invalid=true]");
  if (firstError) { firstError.closest("details")?.setAttribute("open", ""); firstError.focus(); }
  else if (at) scrollTo(0, Number(at));
} catch { /* storage is off */ }
