// R@1, R@5 and R@10 with intervals, and R@1 by reference_k and alpha.
import { state, about, change, ask, askUntilReady, make, setting, live, count, percent, waiting, svgChart, isRecorded, fixed, withOptions } from "./core.js";
import { learn, snap } from "./controls.js";

export function qualityView(root) {
  const tiles = make("div", { class: "tiles" });
  const chart = make("div");
  const heat = make("div", {}, waiting("Measuring all settings"));
  const words = make("p", { class: "soft small" });
  let grid = null, isHere = true;
  root.append(make("div", { class: "stack" }, tiles,
    make("div", { class: "split" },
      make("section", { class: "panel stack" }, make("div", { class: "between" }, make("h2", {}, "R@1 by reference_k and alpha"), make("p", { class: "soft small" }, isRecorded ? "click a cell to use the nearest recorded setting" : "click a cell to use its setting")), heat),
      make("section", { class: "panel stack" }, make("div", { class: "between" }, make("h2", {}, "Gain in points"), make("p", { class: "soft small" }, "queries with a right item among the first 1, 5, 10")), chart, words))));

  const update = live(async () => {
    const found = await ask("quality", setting());
    learn(found.setting);
    if (!found.has_truth) {
      root.replaceChildren(make("section", { class: "panel stack" }, make("h2", {}, "No right items"),
        make("p", {}, withOptions("To measure R@k, start nnnorm explore with --truth FILE: one item number per query (.npy), pairs, or a .json list of lists."))));
      return;
    }
    drawQualityTiles(tiles, found);
    drawRecalls(chart, found.recalls);
    words.textContent = `${count(about.n_sampled)} queries, 95 % intervals; queries of one item are resampled together. ${found.n_uncertain ? `${count(found.n_uncertain)} queries may not be exact. ` : ""}The gain of a setting that you choose here is slightly overstated; nnnorm tune measures it on other queries.`;
    if (grid) drawHeat(heat, grid, found.setting);
    else if (!drawHeat.isAsked) {
      drawHeat.isAsked = true;
      askUntilReady("grid", () => isHere).then((answer) => { drawHeat.isAsked = false; if (isHere) { grid = answer; update(); } }).catch((error) => heat.replaceChildren(error.message));
    }
  });
  return { update, leave: () => { isHere = false; drawHeat.isAsked = false; } };
}

function drawQualityTiles(root, found) {
  root.replaceChildren(...found.recalls.map(({ k, before, after, gain, n_gained, n_lost }) => make("div", { class: "tile" },
    make("p", { class: "soft small" }, `R@${k}`),
    make("p", { class: "big" }, make("span", { class: "was" }, percent(before.mean)), make("span", { class: "was", "aria-hidden": "true" }, "→"), make("span", { class: "now" }, percent(after.mean))),
    make("p", { class: "small" }, make("b", { class: gain.low > 0 ? "up" : gain.high < 0 ? "down" : null }, `${signed(100 * gain.mean)} points`),
      ` [${signed(100 * gain.low)}, ${signed(100 * gain.high)}]`),
    make("p", { class: "soft small" }, `${count(n_gained)} queries gained, ${count(n_lost)} lost`))));
}

function drawRecalls(root, recalls) {
  const width = Math.min(520, root.clientWidth || 520), row = 52, margin = { left: 58, right: 54, top: 8, bottom: 26 };
  const height = margin.top + margin.bottom + row * recalls.length;
  const gains = recalls.map(({ k, gain }) => ({ k, mean: 100 * gain.mean, low: 100 * gain.low, high: 100 * gain.high }));
  const svg = svgChart(width, height, gains.map(({ k, mean, low, high }) => `R@${k}: ${signed(mean)} points, from ${signed(low)} to ${signed(high)}`).join("; "));
  const x = d3.scaleLinear([Math.min(0, d3.min(gains, ({ low }) => low)), Math.max(0, d3.max(gains, ({ high }) => high))], [margin.left, width - margin.right]).nice(5);
  svg.append("g").attr("transform", `translate(0,${height - margin.bottom})`).call(d3.axisBottom(x).ticks(width < 450 ? 3 : 6).tickFormat(signed));
  svg.append("line").attr("class", "line-zero").attr("x1", x(0)).attr("x2", x(0)).attr("y1", margin.top).attr("y2", height - margin.bottom);
  gains.forEach(({ k, mean, low, high }, place) => {
    const middle = margin.top + row * (place + 0.5), kind = low > 0 ? "after" : high < 0 ? "loss" : "before";
    svg.append("text").attr("class", "strong").attr("x", 4).attr("y", middle + 4).text(`R@${k}`);
    svg.append("line").attr("class", `span-${kind}`).attr("x1", x(low)).attr("x2", x(high)).attr("y1", middle).attr("y2", middle);
    svg.append("circle").attr("class", `dot-${kind}`).attr("r", 7).attr("cx", x(mean)).attr("cy", middle);
    svg.append("text").attr("class", "strong").attr("x", width - margin.right + 10).attr("y", middle + 4).text(signed(mean));
  });
  root.replaceChildren(svg.node());
}

function signed(value) {
  const text = fixed(value, 1);
  return text === "0.0" ? "0" : value < 0 ? text : `+${text}`;
}

function drawHeat(root, grid, now) {
  if (!grid.has_truth) { root.replaceChildren(make("p", {}, withOptions("To measure R@1, start nnnorm explore with --truth FILE."))); return; }
  const center = now.method === "nnn" ? Boolean(now.params.center) : false;
  const cells = grid.cells.filter((cell) => Boolean(cell.center) === center);
  const ks = [...new Set(cells.map((cell) => cell.reference_k))].sort((a, b) => a - b);
  const alphas = [...new Set(cells.map((cell) => cell.alpha))].sort((a, b) => a - b);
  const [low, high] = d3.extent(cells, (cell) => cell.recall_at_1);
  const near = (values, value) => values.reduce((best, one) => (Math.abs(one - value) < Math.abs(best - value) ? one : best));
  const isNnn = now.method === "nnn";
  const at = isNnn ? `${near(ks, now.params.reference_k)} ${near(alphas, now.params.alpha)}` : "";
  const known = new Map(cells.map((cell) => [`${cell.reference_k} ${cell.alpha}`, cell]));
  const highest = d3.greatest(cells, (cell) => cell.recall_at_1);
  const heldFocus = root.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const table = make("div", { class: "heat", role: "grid", "aria-label": `R@1 by reference_k and alpha, ${center ? "centered" : "not centered"}` });
  table.style.gridTemplateColumns = `2.4rem repeat(${alphas.length}, minmax(0, 1fr))`;
  table.append(make("div", { class: "row", role: "row" }, make("span", { class: "axis", role: "columnheader", "aria-label": "reference_k" }),
    alphas.map((alpha) => make("span", { class: "axis", role: "columnheader" }, alpha % 0.25 ? "" : String(alpha)))));
  for (const k of ks.slice().reverse()) {
    table.append(make("div", { class: "row", role: "row" }, make("span", { class: "axis", role: "rowheader" }, String(k)), alphas.map((alpha) => {
      const key = `${k} ${alpha}`, cell = known.get(key);
      const moved = cell.recall_at_1 - grid.uncorrected;
      const share = moved >= 0 ? moved / Math.max(1e-9, high - grid.uncorrected) : moved / Math.min(-1e-9, low - grid.uncorrected);
      const tone = moved >= 0 ? "gain" : "loss";
      const button = make("button", { type: "button", class: `${tone}${key === at ? " current" : ""}${cell === highest ? " best" : ""}`, "--v": share.toFixed(3),
        tabindex: key === (at || `${ks[0]} ${alphas[0]}`) ? "0" : "-1", "data-key": key,
        "aria-label": `reference_k ${k}, alpha ${alpha}: R@1 ${percent(cell.recall_at_1)}${key === at ? ", current setting" : ""}${cell === highest ? ", the highest" : ""}`,
        title: `reference_k ${k}, alpha ${alpha}: ${percent(cell.recall_at_1)}`,
        onclick: () => change({ method: "nnn", params: snap({ reference_k: k, alpha, center }) }) }, (100 * cell.recall_at_1).toFixed(1));
      return make("span", { role: "gridcell" , class: "row" }, button);
    })));
  }
  table.addEventListener("keydown", (event) => moveFocus(event, table, alphas.length));
  root.replaceChildren(table, make("p", { class: "legend" }, make("span", {}, "rows: reference_k, columns: alpha"),
    make("span", {}, `${percent(low)} `, make("span", { class: "ramp" }), ` ${percent(high)}, middle: uncorrected, ${percent(grid.uncorrected)}`),
    make("span", {}, isNnn ? "framed: nearest to the current setting" : "the current method isn’t NNN"),
    make("span", {}, "★ highest"),
    make("span", {}, `all cells: ${center ? "centered" : "not centered"}`)));
  if (heldFocus) table.querySelector(`[data-key="${heldFocus}"]`)?.focus();
}

function moveFocus(event, table, n_columns) {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: n_columns, ArrowUp: -n_columns }[event.key];
  if (!step) return;
  const all = Array.from(table.querySelectorAll("button"));
  const next = all[all.indexOf(document.activeElement) + step];
  if (!next) return;
  event.preventDefault();
  all.forEach((button) => button.setAttribute("tabindex", button === next ? "0" : "-1"));
  next.focus();
}
