// Items on a plane, colored by how often they are hits or by their bias; lasso to a list.
import { state, about, change, ask, askUntilReady, keepFocus, make, searchWith, setting, whereList, live, nameOf, picture, pictureOf, count, fixed, hitName, thumb, waiting, saveText, withOptions } from "./core.js";
import { learn } from "./controls.js";

const MOST_PICTURES = 90;

export function mapView(root) {
  const canvas = make("canvas", { tabindex: "0", role: "img", "aria-label": "Map of the items; arrow keys move it, plus and minus zoom" });
  const tip = make("div", { class: "tip", hidden: true });
  const plane = make("div", { class: "plane", id: "plane" }, canvas, tip);
  const color = make("select", { id: "color", onchange: (event) => change({ color: event.target.value }) },
    [["hits", `times ${hitName()}`], ["bias", "bias"]].map(([value, text]) => make("option", { value }, text)));
  const lasso = make("button", { class: "button", id: "lasso", type: "button", "aria-pressed": "false", onclick: () => setLasso(!isLasso) }, "Lasso");
  const reset = make("button", { class: "button", type: "button", onclick: () => d3.select(canvas).transition().duration(300).call(zoom.transform, d3.zoomIdentity) }, "Whole map");
  const inView = make("button", { class: "button", type: "button", id: "in-view", onclick: () => select(visible()) }, "Select visible items");
  const ramp = make("span", { class: "soft small line" });
  const list = make("section", { class: "panel stack", id: "selection", "aria-live": "polite" });
  const words = make("p", { class: "soft small" });
  const holder = make("div", {}, waiting("Computing the map"));
  root.append(holder);
  let places = null, values = null, density = [], shape = d3.zoomIdentity, isLasso = false, path = [], chosen = new Set(), isHere = true, known = {}, isReady = false;
  const images = new Map();
  const zoom = d3.zoom().scaleExtent([1, 60]).filter((event) => !isLasso || event.type === "wheel").on("zoom", (event) => { shape = event.transform; hideTip(); draw(); });

  function size() {
    const { width, height } = plane.getBoundingClientRect();
    return [width, height];
  }

  function spot(place) {
    const [width, height] = size(), scale = 0.47 * Math.min(width, height), wide = Math.min(1.45, width / height);
    return [shape.applyX(width / 2 + wide * scale * places.x[place]), shape.applyY(height / 2 - scale * places.y[place])];
  }

  function visible() {
    const [width, height] = size(), found = [];
    for (let place = 0; place < places.x.length; place++) {
      const [x, y] = spot(place);
      if (values.is_kept[place] && x >= 0 && y >= 0 && x <= width && y <= height) found.push(place);
    }
    return found;
  }

  function draw() {
    if (!places || !values) return;
    const [width, height] = size(), ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const paint = canvas.getContext("2d"), css = getComputedStyle(document.documentElement);
    const tone = (name) => css.getPropertyValue(name).trim();
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint.clearRect(0, 0, width, height);
    drawDensity(paint, tone("--dense"), ratio);
    const isCount = state.color !== "bias", measure = isCount ? values.after : values.bias;
    const [low, high] = isCount ? [0, Math.max(d3.max(values.before), d3.max(values.after))] : d3.extent(measure);
    const scale = (value) => (high > low ? (isCount ? Math.sqrt(value / high) : (value - low) / (high - low)) : 0);
    const ink = d3.interpolateRgb(isCount ? tone("--few") : tone("--heat-low"), isCount ? tone("--hub") : tone("--heat-high"));
    const base = Math.max(2, Math.min(4.2, 130 / Math.sqrt(places.x.length)) * Math.min(1, width / 700)) * Math.min(2.2, Math.sqrt(shape.k));
    const order = d3.range(places.x.length).sort((a, b) => measure[a] - measure[b]);
    const radius = (share) => (isCount ? base * (0.7 + 2.2 * share) : base);
    for (const place of order) {
      const [x, y] = spot(place);
      if (x < -40 || y < -40 || x > width + 40 || y > height + 40) continue;
      const share = scale(measure[place]);
      if (isCount && values.before[place] >= about.hub_hits && values.is_kept[place]) {  // a hub before
        paint.globalAlpha = 0.6; paint.strokeStyle = tone("--hub"); paint.lineWidth = 1;
        paint.beginPath(); paint.arc(x, y, radius(scale(values.before[place])) + 1, 0, 2 * Math.PI); paint.stroke();
      }
      paint.globalAlpha = values.is_kept[place] ? (isCount ? 0.6 + 0.4 * share : 0.85) : 0.07;
      paint.fillStyle = ink(isCount ? share * share : share);
      paint.beginPath();
      paint.arc(x, y, radius(share), 0, 2 * Math.PI);
      paint.fill();
      if (chosen.has(place)) {
        paint.globalAlpha = 1; paint.strokeStyle = tone("--ink"); paint.lineWidth = 1.5; paint.stroke();
      }
    }
    paint.globalAlpha = 1;
    drawPictures(paint, ink, scale, measure);
    if (path.length > 1) {
      paint.strokeStyle = tone("--after"); paint.lineWidth = 2; paint.setLineDash([6, 4]);
      paint.beginPath(); path.forEach(([x, y], n) => (n ? paint.lineTo(x, y) : paint.moveTo(x, y))); paint.closePath(); paint.stroke(); paint.setLineDash([]);
    }
    ramp.replaceChildren(isCount ? `${hitName()} with the current setting: 0` : `bias ${fixed(low, 3)}`, make("span", { class: `ramp ${isCount ? "of-counts" : "of-bias"}` }), isCount ? `${count(high)} times` : fixed(high, 3), ...(isCount ? [make("span", { class: "key ring" }, "a hub without correction")] : []), make("span", { class: "key dense" }, "many items"));
  }

  // Contours of the number of items, made once on a square of side 400.
  function drawDensity(paint, tone, ratio) {
    const [width, height] = size(), scale = 0.47 * Math.min(width, height) / 190, wide = scale * Math.min(1.45, width / height);
    const [left, top] = [shape.applyX(width / 2 - 200 * wide), shape.applyY(height / 2 - 200 * scale)];
    paint.save();
    paint.setTransform(ratio * shape.k * wide, 0, 0, ratio * shape.k * scale, ratio * left, ratio * top);
    paint.fillStyle = tone;
    paint.globalAlpha = 0.5;
    for (const contour of density) { paint.beginPath(); d3.geoPath(null, paint)(contour); paint.fill(); }
    paint.restore();
  }

  function drawPictures(paint, ink, scale, measure) {
    if (shape.k < 2) return;
    const seen = visible();
    if (seen.length > MOST_PICTURES) return;
    const side = Math.max(36, Math.min(84, 340 / Math.sqrt(seen.length)));
    for (const place of seen) {
      const source = pictureOf(places.map_items[place]);
      if (!source) return;
      let image = images.get(source);
      if (!image) { image = new Image(); image.onload = () => draw(); image.src = source; images.set(source, image); }
      if (!image.complete || !image.naturalWidth) continue;
      const [x, y] = spot(place);
      paint.fillStyle = ink(scale(measure[place]));
      paint.fillRect(x - side / 2 - 3, y - side / 2 - 3, side + 6, side + 6);
      paint.drawImage(image, x - side / 2, y - side / 2, side, side);
    }
  }

  function setLasso(isOn) {
    isLasso = isOn;
    lasso.setAttribute("aria-pressed", String(isOn));
    plane.classList.toggle("lasso", isOn);
  }

  async function select(found) {
    chosen = new Set(found);
    draw();
    const items = found.map((place) => places.map_items[place]).sort((a, b) => hits(b) - hits(a));
    const ids = items.map((item) => places.ids[placeOf(item)]);
    const shown = items.slice(0, 60);
    if (shown.length) known = { ...known, ...(await ask("items", { items: shown.join(",") })).items };
    keepFocus(list, () => list.replaceChildren(
      make("div", { class: "between" }, make("h2", {}, items.length ? `${count(items.length)} items selected` : "Nothing selected"), items.length ? make("button", { class: "link", type: "button", onclick: () => select([]).then(() => inView.focus()) }, "clear") : null),
      items.length ? make("div", { class: "line" },
        make("button", { class: "button", type: "button", id: "save-ids", onclick: () => saveText("selection.txt", ids.join("\n") + "\n") }, "Ids as text"),
        make("button", { class: "button", type: "button", onclick: () => saveText("selection.json", JSON.stringify(ids)) }, "Ids as JSON")) : make("p", { class: "soft" }, "Draw around items with the lasso, or select the visible ones."),
      ...(items.length ? [make("p", { class: "soft small" }, withOptions(`For nnnorm index delete --ids. Sorted by hits without correction${items.length > shown.length ? `; the first ${shown.length}` : ""}:`)), make("ul", { class: "thumbs scroll", tabindex: "0", "data-key": "selected", "aria-label": "Selected items" }, shown.map((item) => thumb(known, item, searchWith(item), `${hitName()} ${hits(item)} times`)))] : [])));
  }

  let rowOf = new Map();
  const placeOf = (item) => rowOf.get(item);
  const hits = (item) => values.before[placeOf(item)];

  let n_tips = 0;
  function hideTip() { n_tips += 1; tip.hidden = true; }

  async function showTip(event) {
    if (!isReady || isLasso) return;
    const [px, py] = d3.pointer(event, canvas);
    let best = -1, near = 18 * 18;
    for (let place = 0; place < places.x.length; place++) {
      const [x, y] = spot(place), gap = (x - px) ** 2 + (y - py) ** 2;
      if (gap < near && values.is_kept[place]) { near = gap; best = place; }
    }
    if (best < 0) { hideTip(); return; }
    const item = places.map_items[best];
    const turn = ++n_tips;
    if (!known[item]) known[item] = (await ask("items", { items: item })).items[item] || {};
    if (turn !== n_tips) return;  // the pointer has moved on
    const [x, y] = spot(best), [width, height] = size();
    tip.replaceChildren(...[picture(known, item), make("div", {}, make("b", {}, nameOf(known, item)),
      make("p", { class: "soft" }, `${hitName()} ${count(values.before[best])} → ${count(values.after[best])} times, bias ${fixed(values.bias[best], 3)}`))].filter(Boolean));
    tip.hidden = false;
    tip.style.left = `${Math.max(4, Math.min(x + 14, width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${Math.max(4, Math.min(y - 30, height - tip.offsetHeight - 4))}px`;
  }

  canvas.addEventListener("pointermove", (event) => {
    if (isLasso && path.length) { path.push(d3.pointer(event, canvas)); draw(); } else showTip(event);
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("pointerdown", (event) => {
    if (!isLasso) return;
    canvas.setPointerCapture(event.pointerId);
    path = [d3.pointer(event, canvas)];
  });
  canvas.addEventListener("pointerup", () => {
    if (!isLasso || path.length < 3) { path = []; return; }
    const around = path;
    path = [];
    select(d3.range(places.x.length).filter((place) => values.is_kept[place] && d3.polygonContains(around, spot(place))));
  });
  canvas.addEventListener("keydown", (event) => {
    const selection = d3.select(canvas), move = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
    if (move) selection.call(zoom.translateBy, move[0] / shape.k, move[1] / shape.k);
    else if (event.key === "+" || event.key === "=") selection.call(zoom.scaleBy, 1.4);
    else if (event.key === "-") selection.call(zoom.scaleBy, 1 / 1.4);
    else if (event.key === "l") setLasso(!isLasso);
    else return;
    event.preventDefault();
  });
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const watch = new ResizeObserver(() => draw());
  scheme.addEventListener("change", draw);

  const update = live(async () => {
    if (!places) {
      const found = await askUntilReady("map", () => isHere);
      if (!isHere) return;
      places = found;
      rowOf = new Map(Array.from(places.map_items, (item, place) => [item, place]));
      density = d3.contourDensity().x((place) => 200 + 190 * places.x[place]).y((place) => 200 - 190 * places.y[place]).size([400, 400]).bandwidth(14).thresholds(6)(d3.range(places.x.length));
      isReady = true;
      holder.replaceChildren(make("div", { class: "stack" },
        make("div", { class: "line" }, make("label", { for: "color", class: "small" }, "Color"), color, lasso, inView, reset, ramp),
        make("div", { class: "with-side" }, plane, list), words));
      words.textContent = `${count(places.x.length)} ${places.x.length < about.n_gallery ? `of ${count(about.n_gallery)} items: a random sample and the worst hubs` : "items"}; similar items are close together.${about.has_pictures ? " Zoom in to see pictures." : ""}`;
      d3.select(canvas).call(zoom);
      watch.observe(plane);
    }
    color.value = state.color;
    values = await ask("map/values", { ...setting(), where: whereList() });
    learn(values.setting);
    draw();
    if (!list.children.length) select([]);
  });
  return { update, leave: () => { isHere = false; watch.disconnect(); scheme.removeEventListener("change", draw); } };
}
