// The two distributions that say whether a pool is too small: the age of what is hit, and of what is evicted.

import { key, make, number, percent, seconds, TIERS } from "./api.js";

const HIT = "#2e8b57", GONE = "#d1495b", WIDE = 440, TALL = 190;
let at, wide_px = WIDE;

export function begin(section) {
  at = make("div", { class: "columns" });
  const legend = key([["hit: its gap", HIT], ["evicted: its idle time", GONE]]);
  section.append(make("h2", {}, "Ages"),
    make("p", { class: "about" }, "Green: when something was hit, how long it had not been used (its reuse gap). Red: when something was evicted, how long it had not been used (its idle time). If values are evicted younger than the gaps after which others are still hit, the pool is too small: what goes might have been hit, had it stayed."),
    make("p", { class: "about" }, "A gap longer than values live cannot show as a hit. Such a return is a miss with the cause evicted, counted below each picture; so red behind all green says that the pool is large enough only where these are few. Each colour is drawn to the height of its own tallest bar."), legend, at);
}

export function update({ figures, cache }) {
  if (!figures.ages) { at.replaceChildren(make("p", { class: "dim" }, "this cache measures no ages")); return; }
  const names = cache.components.map((component) => component.name);
  const { edges_s, pools } = figures.ages;
  wide_px = Math.min(WIDE, at.clientWidth || WIDE);
  at.replaceChildren(...pools.map(({ component, tier, hit, evicted }) => {
    const missed = figures.evicted.find(([index, on]) => index === component && on === tier)?.[2] ?? 0;
    return make("div", {}, make("h2", {}, `${names[component]} on ${TIERS[tier]}`), picture(edges_s, hit, evicted),
      ...told(edges_s, hit, evicted).map((words) => make("p", { class: "dim", style: { maxWidth: `${wide_px}px`, margin: "2px 0" } }, words)),
      make("p", { class: "dim", style: { maxWidth: `${wide_px}px`, margin: "2px 0" } }, `${number(missed)} prompt tokens (${percent(missed, figures.totals.prompt_tokens) || "0 %"}) were computed again since this pool had evicted them.`));
  }));
}

const sum = (counts) => counts.reduce((whole, count) => whole + count, 0);

function median(counts) {
  const whole = sum(counts);
  let below = 0;
  for (let i = 0; i < counts.length; i += 1) { below += counts[i]; if (whole && 2 * below >= whole) return i; }
  return null;
}

// What the comparison says, in words.
export function told(edges, hit, evicted) {
  const half = median(hit), gone = median(evicted);
  const words = [];
  if (half !== null) words.push(`Half of the ${number(sum(hit))} hits came after a gap of less than ${seconds(edges[half])}.`);
  if (gone !== null) words.push(`Half of the ${number(sum(evicted))} evicted values had been idle for less than ${seconds(edges[gone])}.`);
  if (half !== null && gone !== null) {
    const longer = sum(hit.slice(gone));
    words.push(longer ? `${percent(longer, sum(hit))} of the hits came after a gap of about that or longer: ${longer * 10 >= sum(hit) ? "values that are evicted might still have been hit." : "few."}` : "No hit came after a gap that long.");
  }
  return words;
}

function picture(edges, hit, evicted) {
  const canvas = make("canvas", { style: { width: `${wide_px}px`, height: `${TALL}px` } }), scale = devicePixelRatio || 1;
  canvas.width = wide_px * scale;
  canvas.height = TALL * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "10px system-ui, sans-serif";
  const used = edges.map((_, i) => i).filter((i) => hit[i] || evicted[i]);
  if (!used.length) { pen.fillStyle = "#888"; pen.fillText("nothing yet", 8, 20); return canvas; }
  const first = Math.max(used[0] - 1, 0), last = Math.min(used[used.length - 1] + 1, edges.length - 1), wide = (wide_px - 10) / (last - first + 1);
  const labels = edges.map((edge) => `<${seconds(edge)}`);
  const every = Math.ceil((Math.max(...labels.slice(first, last + 1).map((label) => pen.measureText(label).width)) + 8) / wide);
  const most = [Math.max(...hit, 1), Math.max(...evicted, 1)];
  for (let i = first; i <= last; i += 1) {
    const x = 5 + (i - first) * wide;
    [[hit, HIT], [evicted, GONE]].forEach(([counts, colour], side) => {
      const tall = (140 * counts[i]) / most[side];
      pen.fillStyle = colour;
      pen.fillRect(x + (side * wide) / 2, 160 - tall, wide / 2 - 1, tall);
    });
    pen.fillStyle = "#888";
    if ((i - first) % every === 0 && x + pen.measureText(labels[i]).width < wide_px) pen.fillText(labels[i], x, 176);
  }
  let x = 6;
  for (const [words, colour] of [[`${number(sum(hit))} hits`, HIT], [`${number(sum(evicted))} evictions`, GONE]]) {
    pen.fillStyle = colour;
    pen.fillText(words, x, 10);
    x += pen.measureText(words).width + 16;
  }
  return canvas;
}
