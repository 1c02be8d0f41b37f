// One query and its first hits before and after, side by side.
import { state, about, change, ask, make, setting, whereList, live, keepFocus, nameOf, picture, count, hitName, isNarrow, isRecorded, say, withOptions } from "./core.js";
import { learn } from "./controls.js";

export function searchView(root) {
  const input = make("input", { type: "search", id: "ask", maxlength: "500", autocomplete: "off",
    "aria-label": about.has_encode ? "Type a query" : "Search the queries",
    placeholder: about.has_encode ? `Type a query${about.examples.length && !isNarrow() ? `, such as “${about.examples[0]}”` : ""}` : "Search the queries" });
  const form = make("form", { class: "ask", role: "search" }, input, make("button", { class: "button main" }, about.has_encode ? "Search" : "Find"));
  const chips = make("div", { class: isRecorded ? "chips many" : "chips" });
  const asked = make("div", { class: "asked" });
  const before = make("ol", { class: "cards", id: "before" });
  const after = make("ol", { class: "cards", id: "after" });
  const confidence = make("span", { class: "soft small", id: "confidence", title: "higher if the first result is more likely to be right" });
  const heading = make("h2", {}, "After", make("span", { class: "wide-only" }, " the correction"));
  const sides = make("div", { class: "sides" },
    make("section", { class: "side before" }, make("h2", {}, "Before"), before),
    make("section", { class: "side after" }, heading, after));
  const legend = make("p", { class: "legend" },
    about.has_truth ? make("span", { class: "key right" }, "the right item") : null,
    make("span", {}, `A hub is ${hitName()} for far more queries than its share. “hub ×N”: N of ${count(about.n_sampled)} queries, before the correction`),
    isRecorded ? null : make("span", {}, "click an item to search with it"),
  );
  const missing = [
    about.has_captions || about.has_pictures ? "" : "--captions FILE or --images FOLDER to see the items",
    about.has_encode ? "" : "--encoder MODEL to type queries",
    about.has_query_captions ? "" : "--query-captions FILE to see the queries",
  ].filter(Boolean);
  const hint = make("p", { class: "soft small", id: "hint" }, isRecorded || !missing.length ? "" : withOptions(`Start nnnorm explore with ${missing.join(", ")}.`));
  form.hidden = isRecorded || !(about.has_encode || about.has_query_captions);
  root.append(make("div", { class: "stack" }, form, chips, asked, sides, legend, hint));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if (!text) return;
    if (about.has_encode) change({ text, query: undefined, item: undefined }, true);
    else offer(text).catch((error) => say(error.message));
  });

  let seed = 0, isOffered = false, which = "any", typed = "";
  const kinds = about.has_truth ? [["any", "random queries"], ["won", "queries that improve"], ["lost", "queries that get worse"]] : [["any", "random queries"], ["won", "queries that change"]];
  const choice = make("select", { "aria-label": "Which queries to offer", id: "which", onchange: (event) => { which = event.target.value; offer().catch((error) => say(error.message)); } },
    kinds.map(([value, text]) => make("option", { value }, text)));
  async function offer(text = "") {
    isOffered = true;
    const found = await ask("queries", isRecorded ? {} : { ...setting(), which, seed, text, k: 5 });
    const label = which !== "any" ? `${count(found.n_found)} of ${count(about.n_sampled)}:` : text ? `${count(found.n_found)}:` : "";
    const buttons = found.queries.slice(0, isRecorded ? 30 : 5).map(({ query, text: words }) => make("button", {
      class: "chip", type: "button", "data-query": query, "aria-pressed": String(state.query === query),
      title: words, onclick: () => change({ query, text: undefined, item: undefined }, true),
    }, words));
    const others = make("button", { class: "chip", type: "button", id: "others", onclick: () => { seed += 1; offer(text).catch((error) => say(error.message)); } }, "↻ others");
    keepFocus(chips, () => chips.replaceChildren(...(isRecorded ? [] : [choice]), ...(isRecorded ? [] : [others]), ...(label ? [make("span", { class: "soft small" }, label)] : []), ...buttons));
    return found;
  }

  const update = live(async () => {
    if (!isOffered) {
      await offer();
      if (state.query === undefined && state.text === undefined && state.item === undefined) change({ query: about.example });
    }
    const what = state.text !== undefined ? { text: state.text } : state.item !== undefined ? { item: state.item } : { query: state.query ?? 0 };
    if (state.text !== undefined || input.value === typed) input.value = typed = state.text ?? "";
    const found = await ask("search", { ...setting(), ...what, where: whereList() }).catch((error) => {
      asked.replaceChildren(...(state.text === undefined ? [] : [make("q", {}, state.text)]));
      before.replaceChildren();  // no results of another query under this one
      after.replaceChildren();
      confidence.textContent = "";
      throw error;
    });
    learn(found.setting);
    for (const chip of chips.querySelectorAll("[data-query]")) chip.setAttribute("aria-pressed", String(Number(chip.dataset.query) === state.query));
    drawAsked(asked, found);
    const rank = found.confidence_rank === null ? "" : `, higher than ${Math.round(100 * found.confidence_rank)} % of queries`;
    confidence.textContent = `confidence ${found.confidence.toFixed(3)}${rank}`;
    (isNarrow() ? asked : heading).append(confidence);
    keepFocus(before, () => drawCards(before, found, found.before, found.before_hits, (place) => moveOf(place + 1, found.before_now[place], "now")));
    keepFocus(after, () => drawCards(after, found, found.after, found.after_hits, (place) => moveOf(found.after_was[place], place + 1, "was")));
  });
  return { update };
}

function drawAsked(root, found) {
  const { kind, text, number } = found.query;
  const parts = kind === "item" ? [picture(found.items, number), make("span", {}, "Search with ", make("q", {}, nameOf(found.items, number)))] : [make(kind === "text" || about.has_query_captions ? "q" : "b", {}, text)];
  if (found.right.length) {
    const was = Math.min(...found.right_was), now = Math.min(...found.right_now);
    const kindOf = now < was ? "good" : now > was ? "bad" : "";
    const words = now === was ? `the right item stays at rank ${count(now)}` : `the right item moves from rank ${count(was)} to ${count(now)}`;
    parts.push(make("span", { class: `verdict ${kindOf}`, id: "verdict" }, words));
  }
  if (kind === "query" && number === about.example) parts.push(make("span", { class: "soft small" }, "a query picked to show the effect, not a typical one"));
  if (found.n_filtered_out) {
    parts.push(make("span", { class: "verdict", id: "filtered-out" }, found.right.length ? `${count(found.n_filtered_out)} of ${count(found.n_filtered_out + found.right.length)} right items are filtered out` : "the right item is filtered out"));
  }
  root.replaceChildren(...parts.filter(Boolean));
}

function moveOf(was, now, word) {
  const other = word === "now" ? now : was;
  if (was === now) return make("span", {}, "stays");
  const isUp = now < was;
  return make("span", { class: isUp ? "up" : "down" }, `${isUp ? "▲" : "▼"} ${word} ${count(other)}`);
}

// Cards keep their element while an item stays, so that its move is animated.
function drawCards(list, found, items, hits, move) {
  const old = new Map(Array.from(list.children, (card) => [Number(card.dataset.item), card]));
  const places = new Map(Array.from(old, ([item, card]) => [item, card.getBoundingClientRect()]));
  const cards = Array.from(items, (item, place) => {
    const isRight = found.right.includes(item);
    const isHub = hits[place] >= about.hub_hits;
    const shown = picture(found.items, item) || make("span", { class: found.items[item]?.caption ? "text" : "text short" }, nameOf(found.items, item));
    const button = make("button", { class: `item${isRight ? " right" : ""}`, type: "button", "data-key": item,
      "aria-label": `rank ${place + 1}: ${nameOf(found.items, item)}${isRight ? ", the right item" : ""}`,
      title: nameOf(found.items, item),
      onclick: () => { if (!isRecorded) change({ item, query: undefined, text: undefined }, true); } },
      shown, make("span", { class: "foot-line" }, make("b", { class: "place" }, String(place + 1)), move(place),
        isRight ? make("span", { class: "mark" }, "✓ right") : isHub ? make("span", { class: "mark hub", title: `${hitName()} for ${count(hits[place])} queries before the correction` }, `hub ×${count(hits[place])}`) : null));
    const card = old.get(item) || make("li", { "data-item": item });
    const image = card.querySelector("img");
    if (image && shown.tagName === "IMG") shown.replaceWith(image);  // no flicker
    card.replaceChildren(button);
    return card;
  });
  list.replaceChildren(...cards);
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const card of cards) {
    const from = places.get(Number(card.dataset.item));
    const to = card.getBoundingClientRect();
    if (!from) card.animate([{ opacity: 0, transform: "scale(.92)" }, { opacity: 1, transform: "none" }], { duration: 180, easing: "ease-out" });
    else if (from.left !== to.left || from.top !== to.top) {
      card.animate([{ transform: `translate(${from.left - to.left}px, ${from.top - to.top}px)` }, { transform: "none" }], { duration: 260, easing: "ease-out" });
    }
  }
}
