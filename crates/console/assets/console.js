// What a page does beyond links and forms: it stays live, and it has keys. Everything works without.
// No string becomes HTML here: figures are text, paths are attributes, and what changes in shape is
// taken from the page itself, asked for again and parsed by the browser as a document.
"use strict";

(() => {
  const body = document.body;
  const main = document.getElementById("main");
  const all = (selector, of = document) => [...of.querySelectorAll(selector)];
  const one = (selector, of = document) => of.querySelector(selector);

  all(".needs-script:not([data-changed]):not([data-pause])").forEach((it) => { it.hidden = false; });
  all("[data-here]").forEach((it) => {
    it.value = (location.pathname.slice(body.dataset.base.length) || "/") + location.search;
  });

  // --- live ------------------------------------------------------------------------------------

  let source = null;
  let paused = false;
  let shape = body.dataset.shape;
  let heard = Date.now();
  // When the console last sent anything, and from when on its silence counts.
  let contact = Date.now();
  let listening = Date.now();
  let lost = false;
  // The newest count of what a list has, and how often the console had counted by then.
  let count, counts = 0;
  let timer = 0;
  const title = document.title;
  const asOf = () => one(".as-of");

  function show({ text = {}, path = {}, shape: current }) {
    for (const it of all("[data-live]")) {
      const value = text[it.dataset.live];
      if (value === undefined || it.textContent === value) continue;
      it.textContent = value;
      if (it.parentElement.matches(".tally")) it.parentElement.hidden = value === "0";
    }
    for (const it of all("[data-live-path]")) {
      const value = path[it.dataset.livePath];
      if (value !== undefined) it.setAttribute("d", value);
    }
    // Rows are never moved under a pointer: a line says that there is something new, once a count that
    // began behind the list differs from it.
    const list = one("[data-changed]");
    if (list) {
      count = text[list.dataset.figure] ?? count;
      counts = Number(text.counts ?? counts);
      list.hidden = counts < Number(list.dataset.counts) || count === list.dataset.changed;
    }
    if (current !== undefined && current !== shape) {
      shape = current;
      refresh();
    }
  }

  // Nothing is moved under a pointer or a focus.
  function isInUse(part) {
    return part.matches(":hover") && one("a, button, input", part) || part.contains(document.activeElement);
  }

  let waiting = false;
  function refresh() {
    if (!one("[data-part]")) return;
    if (all("[data-part]").some(isInUse)) {
      if (!waiting) {
        waiting = true;
        setTimeout(() => { waiting = false; refresh(); }, 2000);
      }
      return;
    }
    const request = new XMLHttpRequest();
    request.open("GET", location.href);
    request.responseType = "document";
    request.onload = () => {
      const page = request.response;
      if (request.status !== 200 || !page) return;
      const fresh = new Map(all("[data-part]", page).map((it) => [it.dataset.part, it]));
      for (const part of all("[data-part]")) {
        const other = fresh.get(part.dataset.part);
        if (other && !isInUse(part)) part.replaceWith(document.importNode(other, true));
      }
      mark();
      ages();
    };
    request.send();
  }

  function mark() {
    const line = asOf();
    if (!line) return;
    const state = one("[data-live-state]", line);
    const button = one("[data-pause]", line);
    const age = Math.round((Date.now() - heard) / 1000);
    const stale = !paused && age > 5;
    state.textContent = paused ? "paused at" : stale ? `${age} s old,` : "live,";
    line.classList.toggle("stale", stale);
    main.classList.toggle("stale", stale);
    button.hidden = false;
    button.textContent = paused ? "Resume" : "Pause";
    button.setAttribute("aria-pressed", String(paused));
  }

  // A console that has ended cannot say so.
  function lose(words, link) {
    const line = one("[data-lost]");
    const told = `${words} ${new Date(contact).toISOString().slice(11, 19)}`;
    if (!line || lost === told) return;
    lost = told;
    one("[data-lost-words]", line).textContent = told;
    one("[data-lost-link]", line).hidden = !link;
    if (link) one("[data-lost-link]", line).href = link;
    body.classList.add("lost");
    line.hidden = false;
    document.title = `${words.split(" to ")[0]} · ${title}`;
  }

  function found() {
    contact = Date.now();
    if (!lost) return;
    lost = false;
    body.classList.remove("lost");
    one("[data-lost]").hidden = true;
    document.title = title;
  }

  function listen() {
    const since = Math.max(contact, listening);
    if (!lost && !paused && !document.hidden && Date.now() - since > 10000) lose("No connection to the console since");
  }

  // Whether that is because somebody has to sign in again.
  function askWhy() {
    const request = new XMLHttpRequest();
    request.open("GET", location.href);
    request.onload = () => {
      if (/\/sign-in\b/.test(new URL(request.responseURL).pathname)) lose("Signed out since", request.responseURL);
    };
    request.send();
  }

  function connect() {
    if (!body.dataset.stream || paused || document.hidden || source) return;
    source = new EventSource(body.dataset.stream);
    source.onmessage = (event) => {
      heard = Date.now();
      found();
      show(JSON.parse(event.data));
      mark();
    };
    source.addEventListener("silence", found);
    source.onerror = () => {
      // The browser tries again by itself, unless it was refused.
      if (source && source.readyState === EventSource.CLOSED) {
        source = null;
        askWhy();
        clearTimeout(timer);
        timer = setTimeout(connect, 5000);
      }
    };
  }

  function disconnect() {
    if (source) source.close();
    source = null;
  }

  function pause() {
    paused = !paused;
    if (paused) disconnect(); else { heard = listening = Date.now(); connect(); }
    mark();
  }

  // A hidden tab keeps no connection: a browser has six for an origin.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) disconnect(); else { heard = listening = Date.now(); connect(); }
  });
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", connect);

  // --- ages ------------------------------------------------------------------------------------

  function span(seconds) {
    const both = (large, unit, small, of) => `${large} ${unit}` + (small ? ` ${small} ${of}` : "");
    const minutes = Math.floor(seconds / 60), hours = Math.floor(seconds / 3600), days = Math.floor(seconds / 86400);
    if (seconds < 120) return `${seconds} s`;
    if (seconds < 7200) return `${minutes} min`;
    if (seconds < 172800) return both(hours, "h", minutes % 60, "min");
    return both(days, "d", days < 10 ? hours % 24 : 0, "h");
  }

  function ages() {
    if (paused) return;
    for (const it of all("time[data-clock], time[data-until]")) {
      const ahead = it.matches("[data-until]");
      const passed = Math.floor((Date.now() - Date.parse(it.dateTime)) / 1000);
      const seconds = Math.max(0, ahead ? -passed : passed);
      const text = seconds === 0 ? "now" : ahead ? `in ${span(seconds)}` : `${span(seconds)} ago`;
      if (it.textContent !== text) it.textContent = text;
    }
  }

  if (body.dataset.stream) {
    connect();
    mark();
    setInterval(() => { listen(); mark(); ages(); }, 1000);
  }

  // What comes of a decision is told until that is final, or it was asked for 120 times.
  function outcome(it, left) {
    const request = new XMLHttpRequest();
    request.open("GET", it.dataset.outcome);
    request.onload = () => {
      const isText = request.getResponseHeader("content-type")?.startsWith("text/plain");
      if (isText && it.textContent !== request.responseText) it.textContent = request.responseText;
    };
    // It is not final either while there is no answer.
    request.onloadend = () => {
      const isFinal = request.status >= 200 && request.status < 500 && request.status !== 202;
      if (!isFinal && left > 0) setTimeout(outcome, 1000, it, left - 1);
    };
    request.send();
  }
  all("[data-outcome]").forEach((it) => outcome(it, 120));

  // --- forms -----------------------------------------------------------------------------------

  document.addEventListener("submit", (event) => {
    const button = event.submitter;
    if (!button || button.name) return;
    setTimeout(() => { button.classList.add("busy"); button.setAttribute("aria-busy", "true"); }, 150);
  });
  // A page that comes back from the cache is not busy.
  addEventListener("pageshow", () => all(".busy").forEach((it) => { it.classList.remove("busy"); it.removeAttribute("aria-busy"); }));
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
  });
  document.addEventListener("click", (event) => {
    const target = event.target.closest("button");
    if (!target) return;
    if (target.matches("[data-pause]")) pause();
    if (target.matches("[data-help]")) help();
    if (target.matches("[data-close]")) target.closest("dialog").close();
  });

  // --- keys ------------------------------------------------------------------------------------

  const dialog = document.getElementById("help");
  const off = one("[data-keys-off]", dialog);
  const store = {
    get: () => { try { return localStorage.getItem("tailpost-keys") === "off"; } catch { return false; } },
    set: (value) => { try { localStorage.setItem("tailpost-keys", value ? "off" : "on"); } catch { /* kept until the page is left */ } },
  };
  off.checked = store.get();
  off.addEventListener("change", () => store.set(off.checked));
  const help = () => (dialog.open ? dialog.close() : dialog.showModal());

  const rows = () => all("[data-row]", main);
  const current = () => one("[data-row].at", main);
  function move(by) {
    const list = rows();
    if (list.length === 0) return;
    const at = current();
    const next = list[Math.min(list.length - 1, Math.max(0, at ? list.indexOf(at) + by : 0))];
    at?.classList.remove("at");
    next.classList.add("at");
    next.scrollIntoView({ block: "nearest" });
    one("a[href], button, input", next)?.focus({ preventScroll: true });
  }
  const press = (it) => { if (it) it.click(); };

  let going = 0;
  const keys = {
    j: () => move(1),
    k: () => move(-1),
    x: () => press(one("input[type=checkbox]", current() ?? document.createElement("p"))),
    X: () => {
      const boxes = all("input[name=letter]:not(:disabled)");
      const on = boxes.some((it) => !it.checked);
      boxes.forEach((it) => { it.checked = on; });
    },
    r: () => press(one("[data-requeue]", current() ?? document.createElement("p")) ?? one("[data-requeue]", main)) || one("[data-requeue-button]")?.focus(),
    p: pause,
    t: () => press(one("[data-theme-button]")),
    "/": () => { const it = one("[data-search]"); if (it) it.focus(); else location.href = `${body.dataset.base}/events`; },
    "?": help,
    g: () => { going = Date.now(); },
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const typing = event.target.matches("input:not([type=checkbox]), textarea, select");
    if (event.key === "Escape") {
      if (typing) { event.target.blur(); return; }
      if (!dialog.open) press(one("[data-back]"));
      return;
    }
    if (typing || off.checked || (dialog.open && event.key !== "?")) return;
    if (event.key === "Enter" && current() && !event.target.closest("a, button, input")) { press(one("[data-open]", current())); return; }
    if (Date.now() - going < 1500) {
      going = 0;
      const link = all("nav [data-go]").find((it) => it.dataset.go === event.key);
      if (link) { event.preventDefault(); press(link); }
      return;
    }
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
})();
