// Runs before the first paint, so that a stored theme does not flash. Not a module: modules run too late.
try {
  const stored = localStorage.getItem("theme");
  if (stored === "dark" || stored === "light") document.documentElement.dataset.theme = stored;
} catch { /* storage is off: the system's wish decides */ }
