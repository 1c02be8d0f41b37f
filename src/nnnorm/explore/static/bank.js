// The past queries: unique ones, copies, whether they match the queries, drift.
import { about, ask, make, live, count, percent, fixed, withOptions } from "./core.js";

export function bankView(root) {
  const update = live(async () => {
    const found = await ask("bank");
    const most = Math.max(...found.most_asked.map((one) => one.count), 1);
    const tile = (name, value, hint) => make("div", { class: "tile" }, make("p", { class: "soft small" }, name), make("p", { class: "big" }, value), make("p", { class: "soft small" }, hint));
    root.replaceChildren(make("div", { class: "stack" },
      make("div", { class: "tiles" },
        tile("past queries", count(found.n_references), `${about.dim} dimensions`),
        tile("unique queries", count(found.n_unique), found.is_sample ? "a random sample is used" : "all are used"),
        tile("near copies dropped", count(found.n_copies), `cosine above ${found.near_copy}`),
        tile("automatic settings", `alpha\u00a0${Number(found.automatic.alpha).toFixed(3)}`, `reference_k ${found.automatic.reference_k}${found.automatic.reliability === null ? "" : `, reliability ${Number(found.automatic.reliability).toFixed(2)}`}`)),
      make("div", { class: "split" },
        make("section", { class: "panel stack" }, make("h2", {}, "Most frequent queries"),
          make("p", { class: "soft small" }, withOptions(`Each one counts once in the correction.${about.has_reference_captions ? "" : " To see texts, start nnnorm explore with --reference-captions FILE."}`)),
          !found.most_asked.length ? make("p", {}, "No query was asked twice, or the bank has no counts.") : make("ol", { class: "bars" }, found.most_asked.map((one) => make("li", {}, make("span", {}, one.text || `past query ${one.row}`), make("b", { class: "number" }, `×${count(one.count)}`),
            make("span", { class: "bar", "aria-hidden": "true" }, make("i", { "--v": (one.count / most).toFixed(3) })))))),
        make("div", { class: "stack" }, drawMismatch(found), drawDrift(found.drift)))));
  });
  return { update };
}

function drawMismatch(found) {
  const z = found.mismatch_z, limit = found.mismatch_limit;
  if (z === null) return make("section", { class: "panel stack" }, make("h2", {}, "Match with the queries"), make("p", {}, "Too few unique past queries to compare."));
  const isMismatched = z > limit;
  const place = Math.min(1, Math.max(0, z / (2 * limit)));
  return make("section", { class: "panel stack" }, make("h2", {}, isMismatched ? "The past queries don’t match the queries" : "The past queries match the queries"),
    make("div", { class: "gauge", role: "img", "aria-label": `z is ${fixed(z, 1)}; above ${limit}, past queries are mismatched` }, make("i", { "--v": place.toFixed(3) })),
    make("div", { class: "between small soft" }, make("span", {}, "one source"), make("span", {}, `limit ${limit}`), make("span", {}, "another source")),
    make("p", {}, `z = ${fixed(z, 1)}. `, isMismatched ? "The past queries and the queries come from different sources, so the correction may make results worse. Use past queries from your own search." : "The past queries and the queries seem to come from one source."));
}

function drawDrift(drift) {
  if (!drift) return make("section", { class: "panel stack" }, make("h2", {}, "Drift"), make("p", { class: "soft" }, withOptions("To compare the past queries of a corrector with these queries, start nnnorm explore with --corrector FILE.")));
  if (drift.error) return make("section", { class: "panel stack" }, make("h2", {}, "Drift: not measured"), make("p", {}, drift.error));
  return make("section", { class: "panel stack" }, make("h2", {}, `Drift: ${drift.verdict}`),
    drift.reasons.length ? make("ul", {}, drift.reasons.map((reason) => make("li", {}, reason))) : make("p", {}, "The corrector’s past queries still match these queries."),
    make("p", { class: "soft small" }, `z ${fixed(drift.z, 1)}, agreement ${drift.agreement === null ? "unknown" : drift.agreement.toFixed(2)}; ${percent(drift.hub_share)} of the hits are hubs, ${percent(drift.hub_share_uncorrected)} without a correction, ${percent(drift.hub_share_refitted)} after a refit.`));
}
