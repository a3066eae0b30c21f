// Talks to the page's server, and writes numbers as people read them.

const token = new URLSearchParams(location.search).get("token");
const headers = token ? { Authorization: `Bearer ${encodeURIComponent(token)}` } : {};

export async function get(name, query = {}) {
  const answer = await fetch(`/api/${name}?${new URLSearchParams(query)}`, { headers });
  if (!answer.ok && answer.status !== 404) throw new Error((await answer.json()).error);
  return answer.status === 404 ? null : answer.json();
}

export async function walk(question) {
  const answer = await fetch("/api/walk", {
    method: "POST",
    headers: { ...headers, "Content-Type": "application/json" },
    body: JSON.stringify(question),
  });
  return answer.json();
}

let inPages = false;

// Where no component says how large its pages are, sizes are told in pages.
export function tellInPages(told) {
  inPages = told;
}

export function bytes(count) {
  if (inPages) return `${number(count)} ${count === 1 ? "page" : "pages"}`;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (count >= 1024 && i < units.length - 1) { count /= 1024; i += 1; }
  return `${count >= 100 || i === 0 ? Math.round(count) : count.toFixed(1)} ${units[i]}`;
}

export const number = (count) => Math.round(count).toLocaleString("en-US");
export const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "");

export function seconds(count) {
  if (count === null || count === undefined) return "";
  if (count < 0.001) return `${Math.round(count * 1e6)} µs`;
  if (count < 1) return `${Math.round(count * 1e3)} ms`;
  if (count < 120) return `${count.toFixed(count < 10 ? 1 : 0)} s`;
  if (count < 7200) return `${(count / 60).toFixed(1)} min`;
  return `${(count / 3600).toFixed(1)} h`;
}

// An element with these attributes and children; text is never read as HTML.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style" && typeof value === "object") Object.assign(element.style, value);
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function table(heads, rows, pick) {
  const cell = (tag, value, i) => make(tag, heads[i].startsWith("#") ? { class: "n" } : {}, value instanceof Node ? value : String(value ?? ""));
  return make("div", { class: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, ...heads.map((head, i) => cell("th", head.replace(/^#/, ""), i)))),
    make("tbody", {}, ...rows.map((row, r) => make("tr", pick ? { class: "pick", onclick: () => pick(r) } : {}, ...row.map((value, i) => cell("td", value, i)))))));
}

// A legend: what each colour means; a mark without a colour of its own has a class.
export const key = (entries) => make("div", { class: "key" }, ...entries.map(([label, colour, mark = ""]) => make("span", {}, make("i", { class: mark, style: { background: colour } }), label)));
export const swatch = (colour) => make("i", { class: "swatch", style: { background: colour } });

export const namespaceName = (name) => (name === null ? "all others" : name || "(no namespace)");
export const NAMESPACE_COLOURS = ["#3155c6", "#e8843c", "#2e8b57", "#8d5fc4", "#d1495b", "#3fb6b2", "#b08a2e", "#c25b9b", "#9aa5b8"];
export const TIERS = ["device", "host", "store"];
export const HIT_COLOURS = ["#2e8b57", "#5cb588", "#9bd4b5"];
export const CAUSE_COLOURS = ["#9aa5b8", "#c3cad6", "#d1495b", "#e8843c", "#8d5fc4", "#b48be0", "#e3cf9f", "#cdb675", "#3a86c8", "#1f4e79", "#76b7d8", "#3fb6b2", "#6b7280", "#3d4451", "#7a1f2b"];
export const CAUSES = {
  never_seen: "no prompt with this prefix came before",
  diverged: "the prefix was seen, but other tokens came behind it",
  evicted: "it could have been resumed from, and went since a pool was short",
  never_saved: "its path is known, but no window or state was saved there",
  other_namespace: "the same tokens are known in another namespace",
  other_weights: "known before the weights changed",
  page_remainder: "the end of a prompt that fills no whole page",
  save_grid: "behind the last length at which a state can be saved",
  load_refused: "on host, but not loaded: it would have cost more, or found no room",
  load_failed: "on host, but the load failed",
  in_flight: "another request computes it now",
  prefetch_given_up: "the store had it, but the request waited no longer",
  last_token: "the last token of a prompt is always computed",
  unknown: "evicted too long ago to be remembered",
  store_failed: "the store listed it and did not give it, or did not answer",
};
