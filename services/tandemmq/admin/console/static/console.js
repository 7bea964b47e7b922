// Renews what a page shows in place, so that scrolling, focus, selection and open details survive. Pages work without.
"use strict";

const pause = document.getElementById("pause");
let readAt = 0;
let paused = false;

function byId(id) {
  return document.getElementById(id);
}

// Age of the reading

function startOfAge() {
  const age = byId("age");
  readAt = performance.now() - (age ? Number(age.dataset.ageMs) : 0);
}

function showAge() {
  const age = byId("age");
  if (!age) return;
  const seconds = Math.floor((performance.now() - readAt) / 1000);
  const text = seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (age.textContent !== text) age.textContent = text;
}

// Making one tree like another: nodes that stay are changed, not replaced, so nothing a reader uses is lost.

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset?.key || "" : "";
}

function alike(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && keyOf(one) === keyOf(other);
}

function isInUse(element) {
  return element.matches("form") && (element.contains(document.activeElement) || element.dataset.touched === "true");
}

function copyAttributes(now, next) {
  const isDetails = now.nodeName === "DETAILS";
  for (const { name } of [...now.attributes]) {
    if (!next.hasAttribute(name) && !(isDetails && name === "open")) now.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (now.getAttribute(name) !== value && !(isDetails && name === "open")) now.setAttribute(name, value);
  }
}

function makeLike(now, next) {
  if (now.nodeType !== Node.ELEMENT_NODE) {
    if (now.data !== next.data) now.data = next.data;
    return;
  }
  if (isInUse(now)) return;
  copyAttributes(now, next);
  const keyed = new Map([...now.childNodes].filter(keyOf).map((child) => [keyOf(child), child]));
  let place = now.firstChild;
  for (const wanted of [...next.childNodes]) {
    const key = keyOf(wanted);
    const found = key ? keyed.get(key) : place;
    if (found && alike(found, wanted)) {
      if (found === place) place = place.nextSibling;
      else now.insertBefore(found, place);
      makeLike(found, wanted);
    } else {
      now.insertBefore(document.importNode(wanted, true), place);
      // What has no name is given up here; what has one may still be wanted further on.
      if (place && !keyOf(place) && !key) {
        const gone = place;
        place = place.nextSibling;
        gone.remove();
      }
    }
  }
  while (place) {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
}

// Renewal

function isReading() {
  // Somebody who is selecting text to copy it should be able to finish.
  return document.hidden || !document.getSelection().isCollapsed;
}

async function renew() {
  if (paused || isReading()) return;
  try {
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(8000) });
    if (!answer.ok || answer.redirected) throw new Error(answer.statusText);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const id of ["content", "reading", "verdict"]) {
      const now = byId(id);
      const wanted = next.getElementById(id);
      if (now && wanted) makeLike(now, wanted);
    }
    document.title = next.title;
    say("");
    startOfAge();
  } catch {
    say("the admin service does not answer");
  }
}

function say(text) {
  const connection = byId("connection");
  if (connection.textContent !== text) connection.textContent = text;
}

async function renewForEver(pauseMs) {
  await renew();
  setTimeout(renewForEver, pauseMs, pauseMs);
}

function setPaused(value) {
  paused = value;
  pause.setAttribute("aria-pressed", String(value));
  pause.textContent = value ? "Go on" : "Pause";
}

// Keyboard and forms

function focusSearch(event) {
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const search = document.querySelector("main input[type=search]");
  if (!search) return;
  event.preventDefault();
  search.focus();
  search.select();
}

function preventTwice(event) {
  const form = event.target;
  if (form.method !== "post") return;
  if (form.dataset.sent === "true") event.preventDefault();
  form.dataset.sent = "true";
}

startOfAge();
setInterval(showAge, 500);
document.addEventListener("keydown", focusSearch);
document.addEventListener("submit", preventTwice);
document.addEventListener("input", (event) => {
  if (event.target.form) event.target.form.dataset.touched = "true";
});
// Back in history shows the page as it was left: its forms may be sent again.
window.addEventListener("pageshow", () => {
  for (const form of document.forms) delete form.dataset.sent;
});
for (const field of document.querySelectorAll("[data-submits]")) {
  field.addEventListener("change", () => field.form.requestSubmit());
}

const liveMs = Number(byId("content").dataset.liveMs);
if (liveMs) {
  pause.hidden = false;
  pause.addEventListener("click", () => setPaused(!paused));
  document.addEventListener("visibilitychange", renew);
  setTimeout(renewForEver, liveMs, liveMs);
}
