// Renews the page's content in place, so that scrolling and selection survive; without scripts the page reloads itself.
"use strict";

const content = () => document.getElementById("content");
let ageFrom = 0;

function startOfAge() {
  const age = document.getElementById("age");
  ageFrom = performance.now() - (age ? Number(age.dataset.ageMs) : 0);
}

function showAge() {
  const age = document.getElementById("age");
  if (!age) return;
  const seconds = Math.floor((performance.now() - ageFrom) / 1000);
  const text = seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (age.textContent !== text) age.textContent = text;
}

async function renew() {
  // Somebody who is selecting text to copy it should be able to finish.
  if (document.hidden || !document.getSelection().isCollapsed) return;
  try {
    const answer = await fetch("/", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(answer.statusText);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    content().replaceWith(document.adoptNode(next.getElementById("content")));
    document.title = next.title;
    startOfAge();
  } catch {
    document.getElementById("connection").hidden = false;
  }
}

async function renewForEver() {
  await renew();
  setTimeout(renewForEver, Number(content().dataset.refreshMs));
}

startOfAge();
setInterval(showAge, 500);
setTimeout(renewForEver, Number(content().dataset.refreshMs));
document.addEventListener("visibilitychange", renew);
