// One rollout while it is being written. Follows one until it ends, then takes the next that comes.
const MAX_TOKENS = 2500, IDLE_MS = 8000, TOP_NATS = 2;
const strip = document.querySelector("[data-strip]");
const who = document.querySelector("[data-strip-who]");
let current = null, next = 0, heard = 0;

const keyOf = (chunk) => `${chunk.stage}/${chunk.step}/${chunk.prompt_id}/${chunk.sample}`;

function begin(chunk) {
  current = keyOf(chunk);
  next = chunk.position;
  strip.replaceChildren();
  who.hidden = false;
  const bound = chunk.entropy_kind === "topk_bound" ? " · entropy: a lower bound from the top k" : "";
  who.textContent = `step ${chunk.step} · prompt ${String(chunk.prompt_id).slice(0, 8)} · rollout ${chunk.sample}${bound}`;
}

function append(chunk) {
  const follow = strip.scrollTop + strip.clientHeight >= strip.scrollHeight - 24;
  const part = document.createDocumentFragment();
  if (chunk.position > next) part.append(Object.assign(document.createElement("span"), { className: "muted", textContent: " … " }));
  for (const token of chunk.tokens.slice(Math.max(0, next - chunk.position))) {
    const span = document.createElement("span");
    const masked = token.token_class === "tool_response";
    const heat = Math.min(9, Math.max(0, Math.floor((token.entropy / TOP_NATS) * 10))) || 0;
    span.className = `tok ${masked ? "masked" : `h${heat}`}${["forking", "reflection"].includes(token.mark) ? ` ${token.mark}` : ""}`;
    span.textContent = token.text;
    if (!masked) span.title = `${chunk.entropy_kind === "topk_bound" ? "≥ " : ""}${Number(token.entropy).toFixed(2)} nats · ${token.token_class}`;
    part.append(span);
  }
  strip.append(part);
  while (strip.childElementCount > MAX_TOKENS) strip.firstElementChild.remove();
  next = Math.max(next, chunk.position + chunk.tokens.length);
  if (follow) strip.scrollTop = strip.scrollHeight;
}

document.addEventListener("astro:live", (event) => {
  for (const chunk of event.detail) {
    const free = current === null || Date.now() - heard > IDLE_MS;
    if (keyOf(chunk) !== current) {
      if (!free) continue;
      begin(chunk);
    } else if (chunk.position === 0 && next > 0) begin(chunk);
    heard = Date.now();
    append(chunk);
    if (chunk.ended) { current = null; who.textContent += " · ended"; }
  }
});

if (strip) setInterval(() => {
  if (heard && Date.now() - heard > IDLE_MS) { who.hidden = false; who.textContent = "nobody is generating now"; }
}, 2000);
