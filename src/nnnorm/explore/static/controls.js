// The setting: method, its sliders, filters, and what can be taken out.
import { state, about, change, keepFocus, make, setting, address, isRecorded, saveText, say, withOptions } from "./core.js";

const HINTS = {
  reference_k: "an item’s bias is the mean of its k best scores with past queries",
  alpha: "weight of the bias; 0 is no correction",
  weight: "weight of the bias; 0 is no correction",
  beta: "how much more the best past queries count than the others",
  center: "subtract the gallery’s mean from the items first",
};
let shown = null;

export function knobsOf(name) {
  return (about.methods.find((method) => method.name === name) || about.methods[0]).knobs;
}

// What the sliders show: the numbers of the answer where the setting is automatic.
function valueOf(knob) {
  if (state.params[knob.name] !== undefined) return state.params[knob.name];
  const settled = shown && shown.method === state.method ? shown.params[knob.name] : undefined;
  if (settled !== undefined) return settled;
  if (state.method === "nnn" && about.automatic[knob.name] !== null) return about.automatic[knob.name];
  return knob.default;
}

function allValues() {
  return Object.fromEntries(knobsOf(state.method).map((knob) => {
    const value = valueOf(knob);
    if (knob.kind !== "steps") return [knob.name, value];
    return [knob.name, nearest(knob.values, value)];
  }));
}

function nearest(values, value) {
  return values.reduce((best, one) => (Math.abs(one - value) < Math.abs(best - value) ? one : best));
}

// The nearest setting that the controls have; an exported page has the recorded ones only.
export function snap(params) {
  const values = Object.fromEntries(knobsOf("nnn").filter((knob) => knob.kind === "steps").map((knob) => [knob.name, knob.values]));
  return Object.fromEntries(Object.entries(params).map(([name, value]) => [name, values[name] ? nearest(values[name], value) : value]));
}

function turn(name, value) {
  change({ params: { ...allValues(), [name]: value } });
}

function write(value) {
  return Number.isInteger(value) ? String(value) : String(Math.round(1000 * value) / 1000);
}

export function drawControls(root) {
  root.replaceChildren();
  const methods = make("select", { id: "method", onchange: (event) => change({ method: event.target.value, params: {} }) },
    about.methods.map((method) => make("option", { value: method.name }, method.label)));
  methods.value = state.method;
  root.append(make("div", { class: "knob" }, make("label", { for: "method" }, "Method"), methods));
  for (const knob of knobsOf(state.method)) root.append(drawKnob(knob));
  if (state.method === "nnn") {
    root.append(make("button", { class: "button", id: "automatic", type: "button",
      title: "reference_k and alpha from the past queries, without labels",
      onclick: () => change({ params: {} }) }, "Automatic"));
  }
  root.append(make("div", { class: "line push" }, Object.keys(about.filters).length ? drawFilters() : null, drawMenu()));
  refresh(root);
}

function drawKnob(knob) {
  const id = `knob-${knob.name}`;
  if (knob.kind === "switch" || knob.kind === "fixed") {
    const box = make("input", { type: "checkbox", id, onchange: (event) => turn(knob.name, event.target.checked) });
    box.disabled = knob.kind === "fixed";
    return make("div", { class: "knob" }, box, make("label", { for: id, title: HINTS[knob.name] }, knob.name));
  }
  const isSteps = knob.kind === "steps";
  const [min, max, step] = isSteps ? [0, knob.values.length - 1, 1] : knob.values;
  const slider = make("input", { type: "range", id, min, max, step, oninput: (event) => {
    const number = Number(event.target.value);
    turn(knob.name, isSteps ? knob.values[number] : number);
  } });
  return make("div", { class: "knob" }, make("label", { for: id, title: HINTS[knob.name] }, knob.name), slider, make("output", { for: id }));
}

function drawFilters() {
  const menu = make("details", { class: "menu" }, make("summary", { class: "button", id: "filters" }, "Filter"),
    make("div", { class: "sheet narrow" }, Object.entries(about.filters).map(([name, values]) => drawFilter(name, values))));
  closeOnEscape(menu);
  return menu;
}

function closeOnEscape(menu) {
  menu.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { menu.open = false; menu.querySelector("summary").focus(); }
  });
}

document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});

function drawFilter(name, values) {
  const id = `filter-${name}`;
  const choice = make("select", { id, onchange: (event) => {
    const where = { ...state.where };
    if (event.target.value) where[name] = event.target.value;
    else delete where[name];
    change({ where });
  } }, make("option", { value: "" }, "any"), values.map((value) => make("option", { value }, value)));
  return make("div", { class: "knob" }, make("label", { for: id }, name), choice);
}

function drawMenu() {
  const commands = make("pre", { id: "commands", tabindex: "0" });
  const copy = make("button", { class: "button", type: "button", onclick: async () => {
    await navigator.clipboard.writeText(commands.textContent);
    say("Copied");
    setTimeout(() => say(""), 1200);
  } }, "Copy commands");
  const links = isRecorded ? [] : [
    make("a", { class: "button", id: "save-bias", download: "bias.safetensors" }, "Bias"),
    make("a", { class: "button", href: "/api/export/outliers", download: "outliers.txt" }, "Outlier list")];
  const menu = make("details", { class: "menu" },
    make("summary", { class: "button" }, "Export"),
    make("div", { class: "sheet" },
      make("h3", {}, "This setting on the command line"), commands,
      make("div", { class: "row" }, copy, links,
        make("button", { class: "button", type: "button", onclick: () => saveText("setting.json", JSON.stringify(shown, null, 2)) }, "Setting as JSON")),
      isRecorded ? null : make("p", { class: "soft small" }, withOptions("The outlier list has the ids that nnnorm scan would remove, one per line, for nnnorm index delete --ids. Use the bias with nnnorm search --bias."))));
  closeOnEscape(menu);
  return menu;
}

function refresh(root) {
  for (const knob of knobsOf(state.method)) {
    const input = root.querySelector(`#knob-${knob.name}`);
    if (!input) continue;
    const value = valueOf(knob);
    if (input.type === "checkbox") { input.checked = Boolean(value); continue; }
    if (knob.kind === "steps") input.value = knob.values.indexOf(nearest(knob.values, value));
    else input.value = value;
    input.setAttribute("aria-valuetext", write(value));
    input.parentElement.querySelector("output").textContent = write(value);
  }
  const n_filters = Object.keys(state.where).length, filters = root.querySelector("#filters");
  if (filters) filters.textContent = n_filters ? `Filter: ${n_filters > 1 ? n_filters : Object.values(state.where)}` : "Filter";
  for (const name of Object.keys(about.filters)) {
    root.querySelector(`#filter-${CSS.escape(name)}`).value = state.where[name] || "";
  }
  const automatic = root.querySelector("#automatic");
  if (automatic) automatic.setAttribute("aria-pressed", String(Object.keys(state.params).length === 0));
  const bias = root.querySelector("#save-bias");
  if (bias) bias.href = `/api/${address("export/bias", setting())}`;
}

let drawnMethod = null;

export function updateControls() {
  const root = document.getElementById("controls");
  if (drawnMethod !== state.method) {
    drawnMethod = state.method;
    keepFocus(root, () => drawControls(root));
  } else refresh(root);
}

// What a view learned about the setting: the numbers of an automatic one, and the commands.
export function learn(found) {
  shown = found;
  document.getElementById("commands").textContent = found.commands.join("\n");
  updateControls();
}
