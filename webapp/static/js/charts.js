// The chart grid. Points are kept by (stage, step), so one that comes twice changes nothing. Charts are drawn when
// they can be seen, all together at most four times a second, and keep the reader's zoom.
const GAP_MS = 250;
const root = document.getElementById("charts");
const data = JSON.parse(document.getElementById("chart-data")?.textContent ?? "null");
const points = new Map();
const charts = new Map();
let revision = data?.revision ?? 0, stages = data?.stages ?? [], fetching = false, again = false, timer = null;

const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const alpha = (color, share) => {
  const n = parseInt(color.slice(1), 16);
  return `rgba(${n >> 16},${(n >> 8) & 255},${n & 255},${share})`;
};

function take(byMetric) {
  const touched = new Set();
  for (const [metric, rows] of Object.entries(byMetric)) {
    if (!points.has(metric)) points.set(metric, new Map());
    for (const [stage, step, value] of rows) points.get(metric).set(`${stage}:${step}`, { stage, step, value });
    touched.add(metric);
  }
  for (const chart of charts.values()) if (chart.metrics.some((m) => touched.has(m))) chart.dirty = true;
}

function series(metric) {
  const rows = [...(points.get(metric)?.values() ?? [])].sort((a, b) => a.stage - b.stage || a.step - b.step);
  const at = new Map(rows.map((p) => [`${p.stage}:${p.step}`, p]));
  return { x: rows.map((p) => p.step), y: rows.map((p) => (typeof p.value === "number" ? p.value : null)), rows, at };
}

function line(spec, chart, one) {
  const color = token(one.color);
  const own = series(one.metric);
  const trace = {
    type: "scatter", mode: own.x.length < 3 ? "lines+markers" : "lines", name: one.label, x: own.x, y: own.y, connectgaps: false,
    line: { color, width: 1.6, dash: one.dash || "solid" }, marker: { color, size: 5 },
    hovertemplate: spec.share ? "%{y:.1%}" : "%{y:.4~g}",
  };
  if (spec.stacked) Object.assign(trace, { stackgroup: "one", mode: own.x.length < 3 ? "lines+markers" : "lines", line: { width: 0.5, color }, fillcolor: alpha(color, 0.8) });
  if (one.error) {
    const half = series(one.error).at;
    trace.mode = "lines+markers";
    trace.error_y = { type: "data", array: own.rows.map((p) => half.get(`${p.stage}:${p.step}`)?.value ?? null), color: alpha(color, 0.55), thickness: 1.2, width: 3 };
  }
  return { trace, own, color };
}

function traces(spec) {
  const made = [];
  for (const one of spec.series) {
    const { trace, own, color } = line(spec, null, one);
    if (!own.x.length) continue;
    if (one.low && one.high) {
      const low = series(one.low), high = series(one.high);
      const edge = { type: "scatter", mode: "lines", line: { width: 0 }, hovertemplate: "%{y:.4~g}", showlegend: false };
      made.push({ ...edge, x: low.x, y: low.y, name: "p10" });
      made.push({ ...edge, x: high.x, y: high.y, name: "p90", fill: "tonexty", fillcolor: alpha(color, 0.16) });
    }
    made.push(trace);
    const odd = own.rows.filter((p) => typeof p.value !== "number");
    if (odd.length) made.push({ type: "scatter", mode: "markers", name: `${one.label}: not finite`, x: odd.map((p) => p.step), y: odd.map(() => 0), text: odd.map((p) => p.value), hovertemplate: "%{text}", marker: { symbol: "x", size: 7, color: token("bad") }, showlegend: false });
  }
  return made;
}

function borders(spec) {
  if (spec.x !== "step") return { shapes: [], annotations: [] };
  const later = stages.filter((s) => s.kind === "rl" && s.first_step > 1);
  const muted = token("muted");
  return {
    shapes: later.map((s) => ({ type: "line", x0: s.first_step - 0.5, x1: s.first_step - 0.5, yref: "paper", y0: 0, y1: 1, line: { color: muted, width: 1, dash: "dot" } })),
    annotations: later.map((s) => ({ x: s.first_step - 0.5, yref: "paper", y: 1, yanchor: "top", xanchor: "left", text: escapeText(s.name), showarrow: false, font: { size: 10, color: muted } })),
  };
}

// Plotly reads a little HTML in its texts.
const escapeText = (text) => String(text).slice(0, 40).replace(/&/g, "&amp;").replace(/</g, "&lt;");

// The whole run from its first step to its last, so that a chart shows what is left.
function span(spec) {
  const ends = spec.x === "step" ? stages.filter((s) => s.kind === "rl").map((s) => s.first_step + s.steps - 1) : [];
  const steps = spec.series.flatMap((one) => series(one.metric).x).concat(ends.filter(Number.isFinite));
  return [1, Math.max(2, ...steps)];
}

// Steps are whole numbers: ticks at 1, 2, 5, 10, ... of them, at most about six.
function stride([first, last]) {
  let size = 1;
  for (let i = 0; size < (last - first) / 6; i++) size *= [2, 2.5, 2][i % 3];
  return size;
}

function layout(spec) {
  const muted = token("muted"), grid = token("line"), whole = span(spec);
  const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, tickfont: { size: 10, color: muted }, fixedrange: false };
  return {
    uirevision: spec.key, autosize: true, margin: { l: 42, r: 8, t: 8, b: 22 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: token("sans"), size: 11, color: token("ink") }, hovermode: "x unified", showlegend: false,
    hoverlabel: { bgcolor: token("panel"), bordercolor: grid, font: { size: 11, color: token("ink") } },
    xaxis: { ...axis, showgrid: false, tickformat: "d", tick0: 0, dtick: stride(whole), range: [whole[0] - 0.5, whole[1] + 0.5] },
    yaxis: { ...axis, rangemode: "tozero", nticks: 5, exponentformat: "power", tickformat: spec.share ? ".3~p" : "" },
    ...borders(spec),
  };
}

// A small number is not shown as none.
const rounded = (value, digits) => (value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits ? value.toExponential(1) : value.toFixed(digits));
const figure = (value, spec) => (typeof value !== "number" ? value : spec.share ? `${rounded(value * 100, 1)} %` : Number.isInteger(value) ? String(value) : rounded(value, Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 3));

// Legend and summary in one: what each line is and its newest number.
function summarize(chart) {
  const { spec } = chart;
  const newest = spec.series.map((one) => [one, series(one.metric).rows.at(-1)]).filter(([, point]) => point);
  const step = Math.max(...newest.map(([, point]) => point.step));
  const line = document.createDocumentFragment();
  line.append(`${spec.x} ${step}`);
  for (const [one, point] of newest) {
    const key = Object.assign(document.createElement("i"), { className: one.dash ? "key dashed" : "key" });
    key.style.color = `var(--${one.color})`;
    const item = Object.assign(document.createElement("span"), { className: "item" });
    const value = Object.assign(document.createElement("b"), { textContent: figure(point.value, spec) });
    const half = one.error ? series(one.error).at.get(`${point.stage}:${point.step}`) : null;
    item.append(key, `${one.label} `, value, half ? ` ± ${figure(half.value, spec)}` : "");
    line.append(" ", item);
  }
  if (spec.unit) line.append(` ${spec.unit}`);
  return line;
}

async function draw(chart) {
  chart.dirty = false;
  const made = traces(chart.spec);
  if (!made.length) return;
  chart.summary.replaceChildren(summarize(chart));
  chart.plot.setAttribute("aria-label", `${chart.spec.title}. ${chart.summary.textContent}`);
  try {
    if (!window.Plotly) throw new Error("the chart library did not load");
    if (!chart.drawn) chart.plot.replaceChildren();
    await Plotly.react(chart.plot, made, layout(chart.spec), { displayModeBar: false, responsive: true, doubleClick: "reset" });
    chart.drawn = true;
  } catch (error) { showTable(chart, error); }
}

function showTable(chart, error) {
  const note = document.createElement("p");
  note.className = "bad small";
  note.textContent = `The chart could not be drawn (${error.message}); its newest numbers:`;
  const table = document.createElement("table");
  for (const one of chart.spec.series) for (const p of series(one.metric).rows.slice(-5)) {
    const row = table.insertRow();
    for (const text of [one.label, p.step, figure(p.value, chart.spec)]) row.insertCell().textContent = text;
  }
  chart.drawn = false;
  chart.plot.replaceChildren(note, table);
}

function schedule() {
  timer ??= setTimeout(() => {
    timer = null;
    for (const chart of charts.values()) {
      if (chart.dirty && chart.visible) draw(chart);
      else if (chart.dirty && !chart.drawn && traces(chart.spec).length) chart.plot.replaceChildren();  // it does not wait for a step
    }
  }, GAP_MS);
}

async function refetch() {
  if (fetching) { again = true; return; }
  fetching = true;
  try {
    const reply = await fetch(`${root.dataset.url}?since=${revision}`, { headers: { Accept: "application/json" } });
    if (!reply.ok) throw new Error(`HTTP ${reply.status}`);
    const fresh = await reply.json();
    if (JSON.stringify(fresh.stages) !== JSON.stringify(stages)) { stages = fresh.stages; for (const c of charts.values()) if (c.drawn) c.dirty = true; }
    revision = fresh.revision;
    take(fresh.points);
    schedule();
  } catch (error) { console.warn("charts:", error); }
  fetching = false;
  if (again) { again = false; setTimeout(refetch, GAP_MS); }
}

function setUp() {
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) charts.get(entry.target.dataset.chart).visible = entry.isIntersecting;
    schedule();
  }, { rootMargin: "200px" });
  for (const spec of data.charts) {
    const card = root.querySelector(`[data-chart="${spec.key}"]`);
    const metrics = spec.series.flatMap((s) => [s.metric, s.low, s.high, s.error]).filter(Boolean);
    charts.set(spec.key, { spec, metrics, card, plot: card.querySelector(".plot"), summary: card.querySelector("[data-summary]"), dirty: false, visible: false, drawn: false });
    seen.observe(card);
  }
  take(data.points);
  document.addEventListener("astro:hint", (event) => {
    const { dirty } = event.detail;
    if (!dirty || dirty.some((part) => part !== "logs")) refetch();
  });
  document.addEventListener("astro:theme", () => { for (const chart of charts.values()) if (chart.drawn) chart.dirty = true; schedule(); });
}

if (root && data) setUp();
