// Keeps a page live: the server says that something has changed (server-sent events), the page fetches itself again,
// and its elements with `data-live` are replaced by the new ones. Without this script pages do not update.
"use strict";

const page = document.querySelector("[data-events]");
const status = document.getElementById("live-status");
const toggle = document.getElementById("live-toggle");
const STORED = "atoll-live";
const SOON_MS = 2000;
const LATE_MS = 30000;
let source = null;
let timer = null;
let wait_ms = SOON_MS;
let fetching = false;
let again = false;

function say(text) {
  if (status.textContent !== text) status.textContent = text;
}

function focusedIn(part) {
  const active = document.activeElement;
  if (!active || !part.contains(active)) return null;
  if (active.id) return `#${CSS.escape(active.id)}`;
  return active.hasAttribute("href") ? `[href="${CSS.escape(active.getAttribute("href"))}"]` : null;
}

function scrollOf(part) {
  return [...part.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
}

function replace(part, fresh) {
  if (part.innerHTML === fresh.innerHTML) return;
  const focused = focusedIn(part);
  const scrolled = scrollOf(part);
  part.replaceChildren(...fresh.childNodes);
  part.querySelectorAll(".scroll").forEach((box, index) => { box.scrollLeft = scrolled[index] || 0; });
  if (focused) part.querySelector(focused)?.focus({ preventScroll: true });
}

async function refresh() {
  // One request at a time; changes meanwhile are fetched together. While text is selected the page is not replaced.
  // Returns "shown", "away" (server or console unreachable: retry) or "refused" (a retry would not help).
  again = true;
  if (fetching || !getSelection().isCollapsed) return "shown";
  fetching = true;
  try {
    while (again) {
      again = false;
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "error" });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!answer.ok) {
        say(`Not live: ${fresh.querySelector(".said")?.textContent ?? `the console answered ${answer.status}`}`);
        return answer.status === 503 ? "away" : "refused";
      }
      for (const part of document.querySelectorAll("[data-live]")) {
        const found = fresh.getElementById(part.id);
        if (found) replace(part, found);
      }
    }
  } catch {
    say("Not live: the console cannot be reached.");
    return "away";
  } finally {
    fetching = false;
  }
  wait_ms = SOON_MS;
  return "shown";
}

function stop() {
  clearTimeout(timer);
  source?.close();
  source = null;
}

function later() {
  // Reconnects after a delay; the first event of a list's stream has the current state.
  clearTimeout(timer);
  timer = setTimeout(() => { stop(); start(); }, wait_ms);
  wait_ms = Math.min(LATE_MS, 2 * wait_ms);
}

async function changed(text) {
  say(`Live: ${text}`);
  if (await refresh() === "away") later();
}

async function away(text) {
  // The server was unreachable, or too many pages are followed; both are temporary.
  stop();
  say(`Not live: ${text}`);
  if (await refresh() !== "refused") later();
}

function start() {
  if (source || document.hidden || toggle.getAttribute("aria-pressed") !== "true") return;
  source = new EventSource(page.dataset.events);
  source.addEventListener("changed", (event) => changed(JSON.parse(event.data)));
  source.addEventListener("away", (event) => away(JSON.parse(event.data)));
  source.addEventListener("ended", (event) => {
    const why = JSON.parse(event.data);
    stop();
    refresh();
    say(why === "over" ? "The run has ended." : `Not live: ${why}`);
  });
  source.onerror = () => {
    if (source?.readyState === EventSource.CLOSED) away("trying again.");
    else say("Not live: the console cannot be reached.");
  };
}

if (page) {
  toggle.hidden = false;
  toggle.setAttribute("aria-pressed", sessionStorage.getItem(STORED) === "off" ? "false" : "true");
  toggle.addEventListener("click", () => {
    const on = toggle.getAttribute("aria-pressed") !== "true";
    toggle.setAttribute("aria-pressed", String(on));
    sessionStorage.setItem(STORED, on ? "on" : "off");
    if (on) start(); else { stop(); say("Live updates are off."); }
  });
  // Browsers allow six connections to a host, so a hidden page closes its own.
  document.addEventListener("visibilitychange", () => { if (document.hidden) stop(); else start(); });
  document.addEventListener("selectionchange", () => { if (again && getSelection().isCollapsed) refresh(); });
  start();
}
