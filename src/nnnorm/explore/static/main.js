// The page: tabs, the current view, and its updates when the state changes.
import { state, about, ask, change, count, listen, make, readAddress, say, isRecorded } from "./core.js";
import { updateControls } from "./controls.js";
import { searchView } from "./search.js";
import { hubsView } from "./hubs.js";
import { mapView } from "./map.js";
import { qualityView } from "./quality.js";
import { bankView } from "./bank.js";

const VIEWS_OF = { search: ["Search", searchView], hubs: ["Hubs", hubsView], map: ["Map", mapView], quality: ["Quality", qualityView], bank: ["Past queries", bankView] };
let current = null, shownView = null;

function drawTabs() {
  const tabs = document.getElementById("tabs");
  const names = Object.keys(VIEWS_OF);
  tabs.replaceChildren(...names.map((name) => make("button", { role: "tab", type: "button", id: `tab-${name}`, "aria-controls": "view",
    onclick: () => change({ view: name }, true) }, VIEWS_OF[name][0])));
  tabs.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = names[(names.indexOf(state.view) + step + names.length) % names.length];
    change({ view: next }, true);
    document.getElementById(`tab-${next}`).focus();
  });
}

function show() {
  if (shownView !== state.view) {
    shownView = state.view;
    if (current && current.leave) current.leave();
    const root = document.getElementById("view");
    root.replaceChildren();
    root.setAttribute("aria-labelledby", `tab-${state.view}`);
    current = VIEWS_OF[state.view][1](root);
    for (const name of Object.keys(VIEWS_OF)) {
      const tab = document.getElementById(`tab-${name}`);
      tab.setAttribute("aria-selected", String(name === state.view));
      tab.setAttribute("tabindex", name === state.view ? "0" : "-1");
    }
  }
  updateControls();
  current.update();
}

async function begin() {
  Object.assign(about, await ask("about"));
  readAddress();
  document.getElementById("facts").textContent = `${count(about.n_gallery)} items · ${count(about.n_queries)} queries · ${count(about.n_references)} past queries, ${count(about.n_unique)} unique${about.is_demo ? " · demo data" : ""}${about.served ? ` · ${about.served}` : ""}${isRecorded ? " · recorded" : ""}`;
  document.getElementById("version").textContent = `nnnorm ${about.version}`;
  document.getElementById("notes").replaceChildren(...about.notes.map((note) => make("p", { class: "note" }, note)));
  drawTabs();
  listen(show);
  window.addEventListener("popstate", () => { readAddress(); show(); });
  window.addEventListener("keydown", (event) => {
    if (event.key !== "/" || /INPUT|TEXTAREA|SELECT/.test(document.activeElement.tagName)) return;
    const input = document.getElementById("ask");
    if (input) { event.preventDefault(); input.focus(); }
  });
  show();
}

begin().catch((error) => say(error.message));
