// Keys: ← and → page, / searches, t shows the tokens. And what a token is, while it is pointed at or after a tap.
"use strict";

function follow(relation) {
  const link = document.querySelector(`a[rel~="${relation}"]`);
  if (link) link.click();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const field = event.target.closest("input:not([type=checkbox]), select, textarea");
  if (field) {
    if (event.key === "Escape") field.blur();
    return;
  }
  if (event.key === "ArrowLeft") follow("prev");
  else if (event.key === "ArrowRight") follow("next");
  else if (event.key === "/") {
    const search = document.querySelector("input[type=search]");
    if (!search) return;
    event.preventDefault();
    search.focus();
    search.select();
  } else if (event.key === "t") {
    const toggle = document.getElementById("tokens");
    if (toggle) toggle.click();
  }
});

const output = document.getElementById("token");
let held = null;

function show(element) {
  if (held) held.classList.remove("held");
  held = element;
  if (element && element.title) {
    element.dataset.title = element.title; // the browser's own tooltip would say it once more
    element.removeAttribute("title");
  }
  output.textContent = element ? element.dataset.title : "";
  if (element) element.classList.add("held");
}

if (output) {
  for (const type of ["pointerover", "click"]) {
    document.addEventListener(type, (event) => {
      const token = event.target.closest(".text i, .text b");
      if (token || held) show(token);
    });
  }
}

const toggle = document.getElementById("tokens");
if (toggle) {
  toggle.checked = localStorage.getItem("tokens") !== "off";
  toggle.addEventListener("change", () => localStorage.setItem("tokens", toggle.checked ? "on" : "off"));
}
