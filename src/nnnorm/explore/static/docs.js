// The HTTP interface from /openapi.json, without a library from elsewhere.
import { make } from "./core.js";

function typeOf(schema) {
  const all = (schema.anyOf || [schema]).filter((one) => one.type !== "null");
  return all.map((one) => {
    const limits = [["minimum", "≥"], ["exclusiveMinimum", ">"], ["maximum", "≤"], ["maxLength", "length ≤"], ["maxItems", "items ≤"], ["pattern", ""]];
    const said = limits.filter(([name]) => one[name] !== undefined).map(([name, sign]) => `${sign} ${one[name]}`.trim());
    return [one.type, ...said].join(", ");
  }).join(" or ");
}

const api = await (await fetch("/openapi.json")).json();
const root = document.getElementById("paths");
root.append(make("p", {}, "All requests are GET. Responses are JSON. ", make("a", { href: "/openapi.json" }, "openapi.json")));
for (const [path, { get }] of Object.entries(api.paths)) {
  const rows = (get.parameters || []).map((one) => make("tr", {}, make("td", {}, one.name), make("td", {}, typeOf(one.schema)), make("td", {}, one.description || "")));
  root.append(make("section", { class: "panel stack" }, make("h2", {}, path), make("p", {}, get.description || ""),
    rows.length ? make("table", { class: "table" }, make("thead", {}, make("tr", {}, ...["parameter", "type", ""].map((name) => make("th", { scope: "col" }, name)))), make("tbody", {}, rows)) : ""));
}
