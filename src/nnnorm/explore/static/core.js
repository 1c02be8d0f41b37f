// State, its place in the address, requests, and the making of elements. Texts of the data reach
// the page as text nodes only.

export const state = { view: "search", method: "nnn", params: {}, where: {} };
export const about = {};
const recorded = window.NNNORM_RECORDED;
export const isRecorded = Boolean(recorded);
const withPicture = new Set(recorded ? recorded.pictures : []);
const VIEWS = ["search", "hubs", "map", "quality", "bank"];
const PARAMS = ["reference_k", "alpha", "weight", "beta", "center"];
const listeners = [];

// --- state in the address ---

export function readAddress() {
  const [view, rest] = location.hash.replace(/^#/, "").split("?");
  const given = new URLSearchParams(rest || "");
  state.view = VIEWS.includes(view) ? view : "search";
  state.method = given.get("method") || firstMethod();
  state.params = {};
  for (const name of PARAMS) {
    if (given.has(name)) {
      const text = given.get(name);
      state.params[name] = name === "center" ? text === "true" : Number.isNaN(Number(text)) ? text : Number(text);
    }
  }
  for (const name of ["query", "item", "hub"]) {
    const number = given.has(name) ? Number(given.get(name)) : NaN;
    state[name] = Number.isInteger(number) && number >= 0 ? number : undefined;
  }
  state.text = given.get("text") || undefined;
  state.color = given.get("color") === "bias" ? "bias" : "hits";
  state.where = {};
  for (const entry of given.getAll("where")) {
    const at = entry.indexOf("=");
    if (at > 0) state.where[entry.slice(0, at)] = entry.slice(at + 1);
  }
}

// The method that a page opens with: what an index serves, or NNN.
export function firstMethod() {
  return about.methods ? about.methods[0].name : "nnn";
}

function writeAddress() {
  const given = new URLSearchParams();
  for (const name of ["query", "text", "item", "hub"]) {
    if (state[name] !== undefined) given.set(name, state[name]);
  }
  if (state.method !== firstMethod() || Object.keys(state.params).length) given.set("method", state.method);
  for (const [name, value] of Object.entries(state.params)) given.set(name, value);
  for (const [name, value] of Object.entries(state.where)) given.append("where", `${name}=${value}`);
  if (state.color === "bias") given.set("color", state.color);
  const rest = given.toString();
  return `#${state.view}${rest ? `?${rest}` : ""}`;
}

// Browsers refuse more than some hundred changes of the address in half a minute: a slider that is
// dragged writes its last place only, and the page goes on where a change is refused.
const SETTLED_MS = 120;
let settling = null;

function putAddress(how) {
  clearTimeout(settling);
  settling = null;
  try {
    history[how](null, "", writeAddress());
  } catch { /* the next change is written again */ }
}

export function change(patch, isStep = false) {
  if (isStep && settling !== null) putAddress("replaceState");
  Object.assign(state, patch);
  if (isStep) putAddress("pushState");
  else {
    clearTimeout(settling);
    settling = setTimeout(() => putAddress("replaceState"), SETTLED_MS);
  }
  listeners.forEach((listener) => listener(patch));
}

window.addEventListener("popstate", () => { clearTimeout(settling); settling = null; });

export function listen(listener) {
  listeners.push(listener);
}

export function setting() {
  return { method: state.method, ...state.params };
}

export function whereList() {
  return Object.entries(state.where).map(([name, value]) => `${name}=${value}`);
}

// --- requests ---

export function address(path, params = {}) {
  const given = new URLSearchParams();
  for (const name of Object.keys(params).sort()) {
    const value = params[name];
    if (Array.isArray(value)) value.forEach((one) => given.append(name, one));
    else if (value !== undefined && value !== null) given.set(name, value);
  }
  return `${path}?${given}`;
}

export async function ask(path, params = {}) {
  if (recorded) return askRecord(path, params);
  const response = await fetch(`/api/${address(path, params)}`).catch(() => {
    throw new Error("The explorer doesn’t answer. Is nnnorm explore still running?");
  });
  if (!response.ok) {
    const answer = await response.json().catch(() => ({}));
    throw new Error(answer.detail || `the explorer returned status ${response.status}`);
  }
  return response.json();
}

// Whether there is an answer: an exported page has the recorded ones only.
export function canAsk(path, params) {
  return !recorded || recorded.answers[address(path, params)] !== undefined;
}

function askRecord(path, params) {
  if (path === "items") return { items: recorded.items };
  const key = [address(path, params), `${path}?`].find((one) => recorded.answers[one] !== undefined);
  if (key === undefined) {
    throw new Error("the recorded page doesn’t have this; start nnnorm explore to see it");
  }
  return { items: recorded.items, ...recorded.answers[key] };
}

export function live(run) {
  let isBusy = false, again = false;
  return async function update() {
    if (isBusy) { again = true; return; }
    isBusy = true;
    do {
      again = false;
      try {
        await run();
        say("");
      } catch (error) {
        if (!again) say(error.message);
      }
    } while (again);
    isBusy = false;
  };
}

// Ask until work that takes seconds is done.
export async function askUntilReady(path, isWanted) {
  for (;;) {
    const found = await ask(path);
    if (found.ready || !isWanted()) return found;
    await new Promise((resolve) => setTimeout(resolve, 600));
  }
}

export function say(text) {
  document.getElementById("status").textContent = text;
}

// --- elements ---

export function make(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// What a press on an item does: search with it, where the page can.
export function searchWith(item) {
  if (!canAsk("search", { ...setting(), item })) return null;
  return () => change({ view: "search", item, query: undefined, text: undefined }, true);
}

// Draw again inside of an element; what had the focus there has it again.
export function keepFocus(root, draw) {
  const held = root.contains(document.activeElement) ? document.activeElement : null;
  const name = held && ["id", "data-hub", "data-query", "data-key"].find((one) => held.hasAttribute(one));
  const value = name && held.getAttribute(name);
  draw();
  if (name && !root.contains(document.activeElement)) {
    root.querySelector(`[${name}="${CSS.escape(value)}"]`)?.focus({ preventScroll: true });
  }
}

// Whether the views are one column, as page.css has it.
export function isNarrow() {
  return matchMedia("(max-width: 1000px)").matches;
}

export function count(number) {
  return Math.round(number).toLocaleString("en");
}

// What is counted as a hit of an item: it is top-1, or in the top 10 if items outnumber queries.
export function hitName() {
  return about.hit_k === 1 ? "top-1" : `in the top ${about.hit_k}`;
}

export function percent(share, digits = 1) {
  return `${(100 * share).toFixed(digits)} %`;
}

// With a minus sign, and no minus before a zero.
export function fixed(value, digits) {
  const text = Math.abs(value).toFixed(digits);
  return value < 0 && Number(text) ? `−${text}` : text;
}

export function pictureOf(item) {
  if (isRecorded) return withPicture.has(item) ? `pictures/${item}.png` : null;
  return about.has_pictures ? `/api/picture?item=${item}` : null;
}

export function nameOf(known, item) {
  const found = known[item] || {};
  return found.caption || `item ${found.id ?? item}`;
}

export function picture(known, item) {
  const source = pictureOf(item);
  if (!source) return null;
  return make("img", { src: source, alt: "", title: nameOf(known, item), loading: "lazy" });
}

// A button with a picture, or with the caption where there is none; without a press no button.
export function thumb(known, item, press, title = "") {
  const inside = picture(known, item) || make("span", { class: "text" }, nameOf(known, item));
  const label = `${nameOf(known, item)}${title ? `, ${title}` : ""}`;
  if (!press) return make("li", { title: label }, inside);
  return make("li", {}, make("button", { "aria-label": label, title: label, "data-key": item, onclick: press }, inside));
}

// Options, and the commands that take them, stay in one piece.
export function withOptions(text) {
  return text.split(/((?:nnnorm (?:index delete|search) )?--[a-z-]+(?: [A-Z]+)?)/).map((part, n) => (n % 2 ? make("code", {}, part) : part));
}

export function waiting(text) {
  return make("p", { class: "waiting" }, text);
}

export function saveText(name, text) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text])), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export function svgChart(width, height, label) {
  return d3.create("svg").attr("class", "chart").attr("viewBox", [0, 0, width, height])
    .attr("role", "img").attr("aria-label", label);
}
