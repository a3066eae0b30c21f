// The tape: evictions and transfers as they happened.

import { bytes, get, make, number, seconds, table, TIERS } from "./api.js";

const KINDS = { evicted: "#d1495b", backup: "#3a86c8", load: "#2e8b57", offload: "#8d5fc4", prefetch: "#3fb6b2" };
const ABOUT = { evicted: "evicted", backup: "device → host", load: "host → device", offload: "host → store", prefetch: "store → host" };
const KEPT = 2000, SHOWN = 200;
let canvas, list, filter, sums, events = [], last = 0, now = 0, leftOut = 0;

export function begin(section) {
  canvas = make("canvas", { class: "flame" });
  filter = make("select", { onchange: draw }, make("option", { value: "" }, "everything"), ...Object.keys(KINDS).map((kind) => make("option", { value: kind }, ABOUT[kind])));
  list = make("div");
  sums = make("div", { class: "key" });
  section.append(make("h2", {}, "Evictions and transfers"),
    make("p", { class: "about" }, "One mark for each pool and step in which something happened, its height by its bytes. Evictions say which pool was short and for which namespace room was made."),
    make("div", { class: "tools" }, filter, sums), canvas, list);
}

export async function update({ figures }) {
  const told = await get("events", { after: last });
  last = told.last;
  now = figures.at_s;
  leftOut = told.left_out;
  events = [...events, ...told.events].slice(-KEPT);
  draw();
}

function draw() {
  const chosen = events.filter((event) => !filter.value || event[2] === filter.value);
  const width = canvas.clientWidth, height = 130, scale = devicePixelRatio || 1, lanes = Object.keys(KINDS);
  canvas.style.height = `${height}px`;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const from = chosen.length ? chosen[0][1] : now, span = Math.max(now - from, 1e-3), most = Math.max(...chosen.map((event) => event[8]), 1);
  pen.font = "11px system-ui, sans-serif";
  lanes.forEach((kind, lane) => {
    pen.fillStyle = "#8886";
    pen.fillRect(0, 25 * lane + 24, width, 1);
    pen.fillStyle = "#888";
    pen.fillText(ABOUT[kind], 2, 25 * lane + 11);
  });
  for (const [, at, kind, , , , , , size] of chosen) {
    const tall = 3 + 20 * Math.sqrt(size / most);
    pen.fillStyle = KINDS[kind];
    pen.fillRect(90 + ((width - 94) * (at - from)) / span, 25 * lanes.indexOf(kind) + 24 - tall, 2, tall);
  }
  const bySum = {};
  for (const [, , kind, , , , , , size] of chosen) bySum[kind] = (bySum[kind] ?? 0) + size;
  sums.replaceChildren(...Object.entries(bySum).map(([kind, size]) => make("span", {}, make("i", { style: { background: KINDS[kind] } }), `${ABOUT[kind]} ${bytes(size)}`)), `in the last ${seconds(span)}${leftOut ? `; ${number(leftOut)} were too many to tell` : ""}`);
  list.replaceChildren(table(["#ago", "what", "tier", "pool that was short", "for", "#times", "#pages", "#bytes", "#lost"], chosen.slice(-SHOWN).reverse().map(([, at, kind, tier, component, wanted, times, pages, size, lost]) =>
    [seconds(Math.max(now - at, 0)), ABOUT[kind], tier === null ? "" : TIERS[tier], component ?? "", kind === "evicted" ? (wanted ?? "nobody said") || "(no namespace)" : "", number(times), number(pages), bytes(size), lost ? number(lost) : ""])));
}
