// Items that are top-1 too often, and those that never are.
import { state, about, change, ask, askUntilReady, canAsk, make, searchWith, setting, whereList, live, keepFocus, nameOf, picture, thumb, count, hitName, percent, fixed, isNarrow, svgChart, waiting } from "./core.js";
import { learn } from "./controls.js";

export function hubsView(root) {
  const tiles = make("div", { class: "tiles" });
  const chart = make("div");
  const rows = make("tbody");
  const detail = make("section", { class: "panel", id: "detail", "aria-live": "polite" }, waiting("Reading the queries of the hub"));
  const never = make("div", { class: "stack" });
  const words = make("p", { class: "soft small" });
  const head = make("tr", {}, ...["item", "before", "after", ...(about.has_truth ? ["wrong"] : []), "bias", "z", "scan"].map((name, place) => make("th", {
    scope: "col", class: ["bias", "z", "wrong"].includes(name) ? "extra" : null,
    title: { before: `times ${hitName()}, uncorrected`, after: `times ${hitName()}, corrected`, wrong: "share of these hits that are wrong", bias: "subtracted from its scores", z: "robust z-score of its bias", scan: "the result of nnnorm scan: adversarial or corrupt?" }[name],
  }, place ? name : "item")));
  root.append(make("div", { class: "stack" },
    make("p", { class: "soft" }, `A hub is an item that is ${hitName()} for far more queries than its share.`),
    tiles,
    make("div", { class: "split" },
      make("div", { class: "stack" },
        make("section", { class: "panel" },
          make("div", { class: "between" }, make("h2", {}, `How often items are ${hitName()}`),
            make("p", { class: "legend" }, make("span", { class: "key" }, "before"), make("span", { class: "key after" }, "after"), make("span", { class: "key null" }, "by chance"))),
          chart, words),
        make("section", { class: "panel" }, make("h2", {}, "The worst hubs"),
          make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The worst hubs" }, make("table", { class: "table" }, make("thead", {}, head), rows)))),
      make("div", { class: "stack" }, detail, make("section", { class: "panel" }, never)))));
  let isHere = true, isScanned = false;

  const update = live(async () => {
    const found = await ask("hubs", { ...setting(), where: whereList() });
    learn(found.setting);
    drawHubTiles(tiles, found);
    const step = drawHistogram(chart, found);
    words.textContent = `${count(about.n_sampled)} queries${about.n_sampled < about.n_queries ? ` of ${count(about.n_queries)}, drawn at random,` : ""} on ${count(about.n_gallery)} items. ${step > 1 ? `Each bar spans ${step} counts. ` : ""}${found.n_uncertain ? `${count(found.n_uncertain)} of them may not be exact. ` : ""}The vertical scale is logarithmic.`;
    if (state.hub === undefined) state.hub = found.hubs[d3.greatest(d3.range(found.hubs.length), (place) => found.hub_before[place] - found.hub_after[place])];
    drawTable(rows, found);
    drawNever(never, found);
    await drawDetail(detail);
    if (!found.scan_is_ready && !isScanned) {
      isScanned = true;
      askUntilReady("scan", () => isHere).then(() => isHere && update());
    }
  });
  return { update, leave: () => { isHere = false; } };
}

function drawHubTiles(root, { before, after, n_never_before, n_never, n_back, n_gone }) {
  const tile = (name, was, now, hint) => make("div", { class: "tile", title: hint }, make("p", { class: "soft small" }, name),
    make("p", { class: "big" }, make("span", { class: "was" }, was), make("span", { class: "was", "aria-hidden": "true" }, "→"), make("span", { class: "now" }, now)));
  root.replaceChildren(
    tile(`the worst hub is ${hitName()}`, `${count(before.max)} times`, `${count(after.max)}`, `the share of an item is ${before.mean.toFixed(2)}`),
    tile(`never ${hitName()}`, count(n_never_before), count(n_never), `items that are ${hitName()} for no query${whereList().length ? ", among the filtered items" : ""}`),
    tile("hits on hubs", percent(before.hub_occurrence, 0), percent(after.hub_occurrence, 0), "hits on items with at least twice their share"),
    tile("inequality (Gini)", before.gini.toFixed(2), after.gini.toFixed(2), "0: all items equal, 1: one item gets all hits"),
    make("div", { class: "tile", title: `${hitName()} for no query before, for some query now` }, make("p", { class: "soft small" }, "came back"),
      make("p", { class: "big" }, make("span", { class: "now" }, count(n_back)), make("span", { class: "was" }, `and ${count(n_gone)} lost`))));
}

function drawHistogram(root, found) {
  const width = Math.min(640, root.clientWidth || 640), height = width < 450 ? 210 : 250, margin = { left: 44, right: 12, top: 12, bottom: 36 };
  const step = 1 + Math.floor(found.expected.length / 60), n_bars = Math.ceil(found.expected.length / step);
  const [before, after, expected] = ["histogram_before", "histogram_after", "expected"].map((name) => d3.range(n_bars).map((n) => d3.sum(found[name].slice(n * step, (n + 1) * step))));
  const svg = svgChart(width, height, `Histogram of how often items are ${hitName()}: at most ${found.before.max} times before, ${found.after.max} after`);
  const highest = d3.max([...before, ...after, ...expected]);
  const x = d3.scaleLinear([0, n_bars * step], [margin.left, width - margin.right]);
  const y = d3.scaleLog([0.5, highest * 1.3], [height - margin.bottom, margin.top]).clamp(true);
  const area = d3.area().x((_, n) => x(n * step)).y0(y(0.5)).y1((value) => y(Math.max(0.5, value))).curve(d3.curveStepAfter);
  const line = d3.line().x((_, n) => x(n * step)).y((value) => y(Math.max(0.5, value))).curve(d3.curveStepAfter);
  for (const [name, values] of [["before", before], ["after", after]]) {
    svg.append("path").attr("class", `area-${name}`).attr("d", area([...values, 0.5]));
    svg.append("path").attr("class", `line-${name}`).attr("d", line([...values, 0.5]));
  }
  const chance = expected.map((value, n) => [(n + 0.5) * step, value]).filter(([, value]) => value >= 0.5);
  svg.append("path").attr("class", "line-null").attr("d", d3.line(([n]) => x(n), ([, value]) => y(value)).curve(d3.curveMonotoneX)(chance));
  svg.append("g").attr("transform", `translate(0,${height - margin.bottom})`).call(d3.axisBottom(x).ticks(Math.min(10, n_bars)).tickFormat(d3.format("d")));
  svg.append("g").attr("transform", `translate(${margin.left},0)`).call(d3.axisLeft(y).ticks(4, "~s").tickSizeOuter(0));
  svg.append("text").attr("x", width - margin.right).attr("y", height - 4).attr("text-anchor", "end").text(`times ${hitName()}`);
  svg.append("text").attr("x", 2).attr("y", 10).text("items");
  root.replaceChildren(svg.node());
  return step;
}

function drawTable(rows, found) {
  keepFocus(rows, () => rows.replaceChildren(...Array.from(found.hubs, (item, place) => make("tr", { class: item === state.hub ? "chosen" : null },
    make("td", {}, make("button", { class: "open", type: "button", "data-hub": item, "aria-pressed": String(item === state.hub), onclick: () => {
      change({ hub: item });
      if (isNarrow()) document.getElementById("detail").scrollIntoView();
    } },
      picture(found.items, item), make("span", {}, nameOf(found.items, item)))),
    make("td", {}, count(found.hub_before[place])),
    make("td", {}, make("b", {}, count(found.hub_after[place]))),
    about.has_truth ? make("td", { class: "extra" }, percent(found.hub_wrong[place], 0)) : null,
    make("td", { class: "extra" }, fixed(found.hub_bias[place], 3)),
    make("td", { class: "extra" }, fixed(found.hub_z[place], 1)),
    make("td", {}, found.scan_is_ready ? make("span", { class: `pill ${found.verdicts[place]}` }, found.verdicts[place]) : make("span", { class: "soft" }, "…"))))));
}

async function drawDetail(root) {
  if (state.hub === undefined) { root.replaceChildren(make("p", { class: "soft" }, "There are no hubs.")); return; }
  const found = { ...await ask("hub", { item: state.hub }), ...await ask("hub/now", { ...setting(), item: state.hub }) };
  const name = nameOf(found.items, state.hub);
  found.groups.flat().forEach((entry, place) => Object.assign(entry, { isStill: Boolean(found.is_still_hit[place]), isRight: Boolean(found.now_is_right[place]) }));
  const groups = found.groups.slice(0, 12);
  const facts = [`${capital(hitName())} for ${count(found.n_before)} queries before, for ${count(found.n_after)} after.`];
  if (found.n_wrong !== null) facts.push(`It is wrong for ${count(found.n_wrong)} of the ${count(found.n_before)}; for ${count(found.n_freed)} of these, it is no longer ${hitName()}.`);
  keepFocus(root, () => root.replaceChildren(make("div", { class: "stack" },
    make("div", { class: "hero" }, picture(found.items, state.hub), make("div", {},
      make("h2", {}, name), make("p", {}, facts.join(" ")),
      make("p", { class: "soft small" }, `id ${found.items[state.hub].id}, bias ${fixed(found.bias, 3)} (z ${fixed(found.bias_z, 1)})${found.scan_is_ready ? `, scan: ${found.verdict}${found.reasons.length ? `: ${found.reasons.join("; ")}` : ""}` : ""}`))),
    make("h3", {}, found.n_wrong === null ? `Queries with this item ${about.hit_k === 1 ? "as top-1" : hitName()}` : "Queries for which it is wrong"),
    groups.length ? make("div", { class: "groups scroll", tabindex: "0", "data-key": "groups", role: "region", "aria-label": "Queries that it answered" }, groups.map((group) => make("div", { class: "group" },
      group.length > 1 ? make("p", { class: "soft small" }, `${count(group.length)} similar queries${group.length > 6 ? ", 6 shown" : ""}`) : null,
      make("ul", {}, group.slice(0, 6).map(({ query, text, isStill, isRight }) => make("li", {},
        linkTo(query, text),
        nowOf(isStill, isRight))))))) : make("p", { class: "soft" }, "None."),
    found.copies.length ? make("div", {}, make("h3", {}, "Its near copies"), make("ul", { class: "thumbs" }, Array.from(found.copies, (item) => thumb(found.items, item, openHub(item))))) : null)));
}

// Where a query went; only a right answer is a gain.
function nowOf(isStill, isRight) {
  if (isRight) return make("span", { class: "small up" }, "  ✓ now right");
  if (isStill) return make("span", { class: "small down" }, `  still ${hitName()}`);
  return make("span", { class: "small soft" }, about.hit_k > 1 ? `  no longer ${hitName()}` : about.has_truth ? "  now another wrong item" : "  now another item");
}

function linkTo(query, text) {
  if (!canAsk("search", { ...setting(), query })) return text;
  return make("button", { class: "link", type: "button", "data-key": `query ${query}`, onclick: () => change({ view: "search", query, text: undefined, item: undefined }, true) }, text);
}

function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}

function openHub(item) {
  return canAsk("hub", { item }) ? () => change({ hub: item }) : null;
}

function drawNever(root, found) {
  const list = (items) => make("ul", { class: "thumbs" }, Array.from(items, (item) => thumb(found.items, item, searchWith(item))));
  keepFocus(root, () => root.replaceChildren(
    make("h2", {}, `${count(found.n_back)} items came back`),
    make("p", { class: "soft small" }, `${capital(hitName())} for no query before, for some query now${found.n_back > found.back.length ? " (a random sample)" : ""}. ${count(found.n_gone)} other items are no longer ${hitName()} for any query.`),
    found.back.length ? list(found.back) : make("p", { class: "soft" }, "None with this setting."),
    make("h2", {}, `${count(found.n_never)} are never ${hitName()}`),
    make("p", { class: "soft small" }, found.never.length < found.n_never ? "A random sample." : ""), found.never.length ? list(found.never) : make("p", { class: "soft" }, "None.")));
}
