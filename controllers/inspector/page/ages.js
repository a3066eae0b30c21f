// The two distributions that say whether a pool is too small: the age of what is hit, and of what is evicted.

import { make, number, seconds, TIERS } from "./api.js";

const HIT = "#2e8b57", GONE = "#d1495b";
let at;

export function begin(section) {
  at = make("div", { class: "columns" });
  section.append(make("h2", {}, "Ages"),
    make("p", { class: "about" }, "Green: how long what was hit had not been used before (the reuse gap). Red: how long what was evicted had not been used. Where the red lies left of the green, values go before they would be used again: the pool is too small."), at);
}

export function update({ figures, cache }) {
  if (!figures.ages) { at.replaceChildren(make("p", { class: "dim" }, "this cache measures no ages")); return; }
  const names = cache.components.map((component) => component.name);
  const { edges_s, pools } = figures.ages;
  at.replaceChildren(...pools.map(({ component, tier, hit, evicted }) => make("div", {}, make("h2", {}, `${names[component]} on ${TIERS[tier]}`), picture(edges_s, hit, evicted),
    make("p", { class: "dim" }, `half of the hits within ${median(edges_s, hit)}, half of the evictions within ${median(edges_s, evicted)}`))));
}

function median(edges, counts) {
  const whole = counts.reduce((sum, count) => sum + count, 0);
  let sum = 0;
  for (let i = 0; i < counts.length; i += 1) { sum += counts[i]; if (whole && 2 * sum >= whole) return seconds(edges[i]); }
  return "(none)";
}

function picture(edges, hit, evicted) {
  const canvas = make("canvas", { style: { width: "440px", height: "190px" } }), scale = devicePixelRatio || 1;
  canvas.width = 440 * scale;
  canvas.height = 190 * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "10px system-ui, sans-serif";
  const used = edges.map((_, i) => i).filter((i) => hit[i] || evicted[i]);
  if (!used.length) { pen.fillStyle = "#888"; pen.fillText("nothing yet", 8, 20); return canvas; }
  const first = Math.max(used[0] - 1, 0), last = Math.min(used[used.length - 1] + 1, edges.length - 1), wide = 430 / (last - first + 1);
  const most = [Math.max(...hit, 1), Math.max(...evicted, 1)];
  for (let i = first; i <= last; i += 1) {
    const x = 5 + (i - first) * wide;
    [[hit, HIT], [evicted, GONE]].forEach(([counts, colour], side) => {
      const tall = (140 * counts[i]) / most[side];
      pen.fillStyle = colour;
      pen.fillRect(x + (side * wide) / 2, 160 - tall, wide / 2 - 1, tall);
    });
    pen.fillStyle = "#888";
    if ((i - first) % Math.ceil(48 / wide) === 0) pen.fillText(`≤${seconds(edges[i])}`, x, 176);
  }
  pen.fillStyle = HIT;
  pen.fillText(`hits, at most ${number(most[0])}`, 6, 10);
  pen.fillStyle = GONE;
  pen.fillText(`evictions, at most ${number(most[1])}`, 130, 10);
  return canvas;
}
