// One socket a page. It brings hints ("the run is at revision 812, metrics changed") and live tokens; what a hint
// is about is fetched over HTTP, so a lost message costs nothing but a moment.
const PING_MS = 20000, HIDDEN_MS = 60000, POLL_MS = 5000, MAX_WAIT_MS = 30000;
const LABELS = { live: ["ok", "live"], connecting: ["warn", "connecting"], polling: ["warn", "polling"], asleep: ["", "asleep"], ended: ["", "signed out"] };

export function say(name, detail) { document.dispatchEvent(new CustomEvent(name, { detail })); }

export class LiveRun {
  constructor(run, revision) {
    Object.assign(this, { run, revision, tries: 0, socket: null, timers: {}, closed: false });
    document.addEventListener("visibilitychange", () => this.onVisibility());
    addEventListener("pagehide", () => this.socket?.close());
    addEventListener("pageshow", (event) => { if (event.persisted) { this.closed = false; this.connect(); } });
    addEventListener("online", () => { if (!this.isOpen) this.connect(); });
    this.connect();
  }

  get isOpen() { return this.socket?.readyState === WebSocket.OPEN; }

  connect() {
    if (this.closed || this.isOpen || this.socket?.readyState === WebSocket.CONNECTING) return;
    clearTimeout(this.timers.retry);
    this.show(this.tries > 2 ? "polling" : "connecting");
    const socket = this.socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/`);
    socket.onopen = () => {
      socket.send(JSON.stringify({ type: "subscribe", run: this.run, since_seq: this.revision }));
      this.timers.ping = setInterval(() => this.isOpen && socket.send('{"type":"ping"}'), PING_MS);
    };
    socket.onmessage = (event) => { try { this.onMessage(JSON.parse(event.data)); } catch (error) { console.warn("live:", error); } };
    socket.onclose = (event) => {
      clearInterval(this.timers.ping);
      if (socket !== this.socket) return;
      if ([4401, 4403, 4404].includes(event.code)) { this.closed = true; return this.show("ended"); }
      if (!this.closed) this.retry();
    };
  }

  retry() {
    const wait = Math.min(MAX_WAIT_MS, 500 * 2 ** this.tries++) * (0.5 + Math.random());
    this.timers.retry = setTimeout(() => this.connect(), wait);
    this.show(this.tries > 2 ? "polling" : "connecting");
    this.timers.poll ??= setInterval(() => { if (!this.isOpen && !document.hidden) say("astro:hint", { seq: null, dirty: null }); }, POLL_MS);
  }

  onMessage(message) {
    if (message.type === "live") return say("astro:live", message.chunks ?? []);
    if (message.type === "refused") { this.closed = true; return this.show("ended"); }
    if (message.type === "pong") return;
    this.tries = 0;
    clearInterval(this.timers.poll);
    this.timers.poll = null;
    this.show("live");
    const seq = message.seq ?? message.revision;
    if (typeof seq !== "number") return;
    // Hints may come twice or out of order; only a newer revision says anything. A gap needs no care of its own:
    // what is fetched is always "everything since the revision this page has".
    if (seq <= this.revision) return;
    this.revision = seq;
    say("astro:hint", { seq, dirty: Array.isArray(message.dirty) && message.dirty.length ? message.dirty : null });
  }

  onVisibility() {
    clearTimeout(this.timers.hidden);
    if (document.hidden) {
      this.timers.hidden = setTimeout(() => { this.closed = true; this.socket?.close(); this.show("asleep"); }, HIDDEN_MS);
    } else if (!this.isOpen) {
      this.closed = false;
      this.tries = 0;
      this.connect();
    }
  }

  show(state) {
    const pill = document.getElementById("connection");
    if (!pill) return;
    const [tone, word] = LABELS[state];
    pill.hidden = false;
    pill.querySelector(".dot").className = `dot ${tone}`;
    const text = pill.querySelector("[data-text]");
    if (text.textContent !== word) text.textContent = word;
  }
}
