// The tape: evictions, transfers and invalidations as they happened.

import { bytes, get, make, namespaceName, number, seconds, table, TIERS } from "./api.js";

const KINDS = { evicted: "#d1495b", backup: "#3a86c8", load: "#2e8b57", offload: "#8d5fc4", prefetch: "#3fb6b2", invalidated: "#e8843c" };
const ABOUT = { evicted: "evicted", backup: "device → host", load: "host → device", offload: "host → store", prefetch: "store → host", invalidated: "invalidated" };
const SHOWN = 200, PAIRS = 12, LANE = 25, LEFT = 90;
let canvas, list, filter, sums, newest, pairs, events = [], last = 0, kept = 0, now = 0, leftOut = 0;

export function begin(section) {
  canvas = make("canvas", { class: "flame" });
  filter = make("select", { onchange: draw }, make("option", { value: "" }, "everything"), ...Object.keys(KINDS).map((kind) => make("option", { value: kind }, ABOUT[kind])));
  list = make("div", { class: "wide" });
  sums = make("div", { class: "key" });
  newest = make("p", { class: "about" });
  pairs = make("div");
  section.append(make("h2", {}, "Evictions, transfers and invalidations"),
    make("p", { class: "about" }, "One mark for each pool and step in which something happened, its height by its bytes. An eviction says which pool was short, from which namespaces values were taken, and for which one room was made. Invalidated: the weights of a namespace changed, or all was reset; its pages go later, with the next evictions."),
    make("div", { class: "tools" }, filter, sums), canvas, pairs, make("h2", {}, "As it happened"), newest,
    make("p", { class: "about" }, "A row merges the calls of one kind in one step. Tokens: those whose paths had these pages; a state or a window alone has none. Needed, no copy: of the values those that a prompt could have resumed from and that no other tier has."), list);
}

export async function update({ figures }) {
  const told = await get("events", { after: last });
  ({ last, kept, left_out: leftOut } = told);
  now = figures.at_s;
  events = [...events, ...told.events].slice(-kept);
  draw();
}

function draw() {
  const chosen = events.filter((event) => !filter.value || event[2] === filter.value);
  const width = canvas.clientWidth, scale = devicePixelRatio || 1, lanes = Object.keys(KINDS), height = LANE * lanes.length + 18;
  canvas.style.height = `${height}px`;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const from = chosen.length ? chosen[0][1] : now, span = Math.max(now - from, 1e-3), most = Math.max(...chosen.map((event) => event[10]), 1);
  pen.font = "11px system-ui, sans-serif";
  lanes.forEach((kind, lane) => {
    pen.fillStyle = "#8886";
    pen.fillRect(0, LANE * lane + 24, width, 1);
    pen.fillStyle = "#888";
    pen.fillText(ABOUT[kind], 2, LANE * lane + 17);
  });
  for (const [, at, kind, , , , , , , , size] of chosen) {
    const tall = kind === "invalidated" ? 23 : 3 + 20 * Math.sqrt(size / most);
    pen.fillStyle = KINDS[kind];
    pen.fillRect(LEFT + ((width - LEFT - 4) * (at - from)) / span, LANE * lanes.indexOf(kind) + 24 - tall, 2, tall);
  }
  if (chosen.length) axis(pen, width, span, height - 4);
  const bySum = {};
  for (const [, , kind, , , , , , , , size] of chosen) bySum[kind] = (bySum[kind] ?? 0) + size;
  sums.replaceChildren(...Object.entries(bySum).filter(([kind]) => kind !== "invalidated").map(([kind, size]) => make("span", {}, make("i", { style: { background: KINDS[kind] } }), `${ABOUT[kind]} ${bytes(size)}`)), `in the last ${seconds(span)}`);
  whoForWhom(chosen.filter((event) => event[2] === "evicted"));
  const shown = chosen.slice(-SHOWN).reverse();
  newest.textContent = `The newest ${number(shown.length)} of ${number(chosen.length)} rows${filter.value ? " of this kind" : ""} that the page keeps, at most ${number(kept)} of all kinds; there were ${number(last)}${leftOut ? `, and ${number(leftOut)} more than could be told in their second` : ""}.`;
  list.replaceChildren(table(["#ago", "what", "tier", "pool that was short", "taken from", "to make room for", "#calls", "#values", "#tokens", "#pages", "#bytes", "#needed, no copy"], shown.map(row)));
}

// A few times ago, as far apart as their words need.
function axis(pen, width, span, y) {
  const parts = Math.max(Math.min(Math.floor((width - LEFT) / 140), 8), 1);
  pen.fillStyle = "#888";
  for (let part = 0; part <= parts; part += 1) {
    const words = part === parts ? "now" : `${seconds(span * (1 - part / parts))} ago`, at = LEFT + ((width - LEFT - 4) * part) / parts;
    pen.fillText(words, Math.min(at, width - pen.measureText(words).width - 2), y);
  }
}

const owner = ([namespace, count]) => `${namespaceName(namespace)} ${number(count)}`;
const beneficiary = (namespace) => (namespace === null ? "nobody said" : namespaceName(namespace));

function row([, at, kind, tier, component, namespace, calls, values, tokens, pages, size, needed, owners]) {
  const ago = seconds(Math.max(now - at, 0)), count = (value) => (value ? number(value) : "");
  if (kind === "invalidated") return [ago, ABOUT[kind], "", "", namespace === null ? "all namespaces" : namespaceName(namespace), "", number(calls), "", "", "", "", ""];
  const from = kind !== "evicted" ? "" : owners.length ? owners.map(owner).join(", ") : "what had been invalidated";
  return [ago, ABOUT[kind], tier === null ? "" : TIERS[tier], component ?? "", from, kind === "evicted" ? beneficiary(namespace) : "", number(calls), count(values), count(tokens), number(pages), bytes(size), count(needed)];
}

// Who lost how many values to whom, most first.
function whoForWhom(evictions) {
  const counts = new Map();
  for (const [, , , , , namespace, , , , , , , owners] of evictions) {
    for (const [from, count] of owners) {
      const pair = JSON.stringify([from, namespace]);
      counts.set(pair, (counts.get(pair) ?? 0) + count);
    }
  }
  const rows = [...counts].sort((one, other) => other[1] - one[1]);
  const title = rows.length > PAIRS ? `Who lost values to whom: the ${PAIRS} pairs with most, of ${number(rows.length)}` : "Who lost values to whom";
  pairs.replaceChildren(...(rows.length ? [make("h2", {}, title), table(["taken from", "to make room for", "#values evicted"], rows.slice(0, PAIRS).map(([pair, count]) => {
    const [from, namespace] = JSON.parse(pair);
    return [namespaceName(from), beneficiary(namespace), number(count)];
  }))] : []));
}
