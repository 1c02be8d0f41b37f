// The past queries: unique ones, copies, whether they match the queries, drift.
import { about, ask, make, live, count, percent } from "./core.js";

export function bankView(root) {
  const update = live(async () => {
    const found = await ask("bank");
    const most = Math.max(...found.most_asked.map((one) => one.count), 1);
    const tile = (name, value, hint) => make("div", { class: "tile" }, make("p", { class: "soft small" }, name), make("p", { class: "big" }, value), make("p", { class: "soft small" }, hint));
    root.replaceChildren(make("div", { class: "stack" },
      make("div", { class: "tiles" },
        tile("past queries", count(found.n_references), `${about.dim} dimensions`),
        tile("unique queries", count(found.n_unique), found.is_sample ? "a random sample" : "all that there are"),
        tile("copies collapsed", count(found.n_copies), `closer than a cosine of ${found.near_copy}`),
        tile("automatic setting", `k = ${found.automatic.reference_k}, α = ${Number(found.automatic.alpha).toFixed(2)}`, found.automatic.reliability === null ? "" : `reliability of the bank ${Number(found.automatic.reliability).toFixed(2)}`)),
      make("div", { class: "split" },
        make("section", { class: "panel stack" }, make("h2", {}, "Queries that were asked most often"),
          make("p", { class: "soft small" }, "Each counts once in the correction, however often it was asked."),
          most < 2 ? make("p", {}, "No query was asked twice, or the bank counts none.") : make("ol", { class: "bars" }, found.most_asked.map((one) => make("li", {}, make("span", {}, one.text || `reference ${one.row}`), make("b", { class: "number" }, `×${count(one.count)}`),
            make("span", { class: "bar", "aria-hidden": "true" }, make("i", { "--v": (one.count / most).toFixed(3) })))))),
        make("div", { class: "stack" }, drawMismatch(found), drawDrift(found.drift)))));
  });
  return { update };
}

function drawMismatch(found) {
  const z = found.mismatch_z, limit = found.mismatch_limit;
  if (z === null) return make("section", { class: "panel stack" }, make("h2", {}, "Same source?"), make("p", {}, "Too few different rows to tell."));
  const isMismatched = z > limit;
  const place = Math.min(1, Math.max(0, z / (2 * limit)));
  return make("section", { class: "panel stack" }, make("h2", {}, isMismatched ? "The past queries are mismatched" : "The bank is like the queries"),
    make("div", { class: "gauge", role: "img", "aria-label": `z is ${z.toFixed(1)}; above ${limit} past queries are mismatched` }, make("i", { "--v": place.toFixed(3) })),
    make("div", { class: "between small soft" }, make("span", {}, "mixes as one source"), make("span", {}, `limit ${limit}`), make("span", {}, "another source")),
    make("p", {}, `z = ${z.toFixed(1).replace("-", "−")}. `, isMismatched ? "Rows of the bank and of the queries do not mix: the correction may do harm. Give past queries of the kind that is searched." : "Rows of the bank and of the queries mix as those of one source do, so the correction is for these queries."));
}

function drawDrift(drift) {
  if (!drift) return make("section", { class: "panel stack" }, make("h2", {}, "Drift"), make("p", { class: "soft" }, "Start with --corrector FILE, and --recent FILE if the queries are not recent ones, to see whether the bank is still like today's queries."));
  if (drift.error) return make("section", { class: "panel stack" }, make("h2", {}, "Drift: not measured"), make("p", {}, drift.error));
  return make("section", { class: "panel stack" }, make("h2", {}, `Drift: ${drift.verdict}`),
    drift.reasons.length ? make("ul", {}, drift.reasons.map((reason) => make("li", {}, reason))) : make("p", {}, "The bank of the corrector is still like these queries."),
    make("p", { class: "soft small" }, `z ${drift.z.toFixed(1)}, shift of the mean ${drift.mean_shift.toFixed(2)}, agreement ${drift.agreement === null ? "not known" : drift.agreement.toFixed(2)}; hubs take ${percent(drift.hub_share)} of the hits, ${percent(drift.hub_share_uncorrected)} without a correction${drift.hub_share_refitted === null ? "" : `, ${percent(drift.hub_share_refitted)} after a refit`}.`));
}
