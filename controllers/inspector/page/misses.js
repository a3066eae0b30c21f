// Hits and misses by cause, over time and in all.

import { CAUSE_COLOURS, CAUSES, get, HIT_COLOURS, key, make, number, percent, swatch, table, TIERS } from "./api.js";

const COLOURS = [...HIT_COLOURS, ...CAUSE_COLOURS];
let chart, plot, legend, totals, drawn = "";

export function begin(section) {
  chart = make("div");
  legend = make("div");
  totals = make("div");
  section.append(make("h2", {}, "Hits and misses by cause"),
    make("p", { class: "about" }, "Prompt tokens a second, by what became of them. A hit need not be computed; each other token is computed for exactly one reason."),
    chart, legend, totals);
}

export async function update({ figures, cache, causes }) {
  const { at_s, rates, labels } = await get("time");
  const used = labels.map((_, i) => i).filter((i) => rates[i]?.some(Boolean));
  draw(at_s, rates, labels, used);
  tell(figures, cache, causes);
}

// Areas on top of one another: the sum of all first, and then less and less of it.
function draw(at_s, rates, labels, used) {
  const shape = used.join();
  const sums = [], sum = at_s.map(() => 0);
  for (const i of used) { rates[i].forEach((count, at) => { sum[at] += count; }); sums.unshift(sum.slice()); }
  const data = [at_s, ...sums];
  if (shape === drawn && plot) { plot.setData(data); return; }
  drawn = shape;
  plot?.destroy();
  legend.replaceChildren(key(used.map((i) => [labels[i].replaceAll("_", " "), COLOURS[i]])));
  if (!used.length) { plot = null; chart.replaceChildren(make("p", { class: "dim" }, "no request so far")); return; }
  const series = used.toReversed().map((i) => ({ label: labels[i], stroke: COLOURS[i], fill: COLOURS[i], width: 0.5, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) }));
  const ink = getComputedStyle(document.body).getPropertyValue("--dim");
  const axis = { stroke: ink, grid: { stroke: "#8883", width: 1 }, ticks: { stroke: "#8883" } };
  const wall = at_s[0] > 1e9;
  plot = new uPlot({
    width: Math.min(document.querySelector("main").clientWidth - 40, 1460), height: 320, legend: { show: false },
    scales: { x: { time: wall }, y: { range: (_, __, most) => [0, Math.max(most, 1)] } },
    axes: [{ ...axis, space: 110 }, { ...axis, size: 76, values: (_, marks) => marks.map(number) }], series: [{}, ...series],
  }, data, (chart.replaceChildren(), chart));
}

function tell(figures, cache, causes) {
  const { totals: all, misses, evicted, details } = figures;
  const whole = all.prompt_tokens;
  const hits = [["hit on device", all.hit_tokens - all.host_hit_tokens], ["hit from host", all.host_hit_tokens - all.storage_hit_tokens], ["hit from store", all.storage_hit_tokens]];
  const rows = hits.filter(([, count], i) => count || !i).map(([label, count], i) => [make("span", {}, swatch(HIT_COLOURS[i]), ` ${label}`), number(count), percent(count, whole), ""]);
  const order = misses.map((count, i) => [count, i]).filter(([count]) => count).sort((one, other) => other[0] - one[0]);
  for (const [count, i] of order) rows.push([make("span", {}, swatch(CAUSE_COLOURS[i]), ` ${causes[i].replaceAll("_", " ")}`), number(count), percent(count, whole), CAUSES[causes[i]] ?? ""]);
  const parts = [make("h2", {}, `${number(whole)} prompt tokens of ${number(all.requests)} requests`), table(["", "#tokens", "#of all", "that is"], rows)];
  if (!cache.remembers) parts.push(make("p", { class: "error" }, "This cache remembers no evictions (ghost_bytes is 0), so there are no causes."));
  if (evicted.length) {
    const names = cache.components.map((component) => component.name);
    parts.push(make("h2", {}, "Evicted: which pool was short"), table(["component", "tier", "#tokens lost", "#of all misses"], evicted.sort((one, other) => other[2] - one[2]).map(([component, tier, count]) => [names[component], TIERS[tier], number(count), percent(count, whole - all.hit_tokens)])));
  }
  if (details.length) parts.push(make("h2", {}, "Details"), table(["cause", "detail", "#tokens"], details.sort((one, other) => other[2] - one[2]).map(([cause, detail, count]) => [causes[cause].replaceAll("_", " "), detail, number(count)])));
  const drops = Object.entries(figures.drops);
  if (drops.length) parts.push(make("h2", {}, "Dropped or failed"), table(["what", "#times"], drops.map(([what, count]) => [what, number(count)])));
  if (figures.storage) {
    const { errors, last_error, is_degraded, quarantined } = figures.storage;
    const bad = Object.entries(quarantined).map(([pool, count]) => [`corrupt pages of ${pool}, quarantined`, number(count)]);
    parts.push(make("h2", {}, "Store"), table(["what", ""], [["calls that failed", number(errors)], ["it can be used at present", is_degraded ? "no" : "yes"], ...bad, ...(last_error ? [["the last error", last_error]] : [])]));
  }
  totals.replaceChildren(...parts);
}
