// Keeps a page live: the server says that something has changed (server-sent events), the page fetches itself again,
// and its elements with `data-live` are replaced by the new ones. Without this script pages show one moment.
"use strict";

const page = document.querySelector("[data-events]");
const status = document.getElementById("live-status");
const toggle = document.getElementById("live-toggle");
const STORED = "atoll-live";
let source = null;
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
  // One request at a time; changes meanwhile are fetched together. A selection would be lost: it is waited for.
  again = true;
  if (fetching || !getSelection().isCollapsed) return;
  fetching = true;
  try {
    while (again) {
      again = false;
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "error" });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!answer.ok) {
        say(`Not live: ${fresh.querySelector(".said")?.textContent ?? `the console answered ${answer.status}`}`);
        return;
      }
      for (const part of document.querySelectorAll("[data-live]")) {
        const found = fresh.getElementById(part.id);
        if (found) replace(part, found);
      }
    }
  } catch {
    say("Not live: the console cannot be reached.");
  } finally {
    fetching = false;
  }
}

function stop() {
  source?.close();
  source = null;
}

function start() {
  if (source || document.hidden || toggle.getAttribute("aria-pressed") !== "true") return;
  source = new EventSource(page.dataset.events);
  source.addEventListener("changed", (event) => { say(`Live: ${JSON.parse(event.data)}`); refresh(); });
  source.addEventListener("ended", (event) => {
    const why = JSON.parse(event.data);
    stop();
    refresh();
    say(why === "over" ? "The run has ended." : `Not live: ${why}`);
  });
  source.onerror = () => {
    say(source?.readyState === EventSource.CLOSED ? "Not live: load the page again." : "Not live: the console cannot be reached.");
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
  // Browsers allow six connections to a host: a hidden page holds none.
  document.addEventListener("visibilitychange", () => { if (document.hidden) stop(); else start(); });
  document.addEventListener("selectionchange", () => { if (again && getSelection().isCollapsed) refresh(); });
  start();
}
