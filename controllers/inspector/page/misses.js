// Hits and misses by cause or by namespace, over time and in all.

import { CAUSE_COLOURS, CAUSES, get, HIT_COLOURS, key, make, NAMESPACE_COLOURS, namespaceName, number, percent, swatch, table, TIERS } from "./api.js";

const COLOURS = [...HIT_COLOURS, ...CAUSE_COLOURS], COLOURS_OF_ONE = [HIT_COLOURS[0], ...CAUSE_COLOURS];
const ALL = JSON.stringify({}), BY_NAMESPACE = JSON.stringify({ by: "namespace" }), OTHERS = JSON.stringify({ others: "" });
const MOST_DETAILS = 256;
let chart, plot, legend, totals, choice, spaces, state, drawn = "", offered = "", invalidations = [];

export function begin(section) {
  chart = make("div");
  legend = make("div");
  totals = make("div");
  spaces = make("div");
  choice = make("select", { id: "namespaces", onchange: () => update(state) });
  section.append(make("h2", {}, "Hits and misses by cause"),
    make("p", { class: "about" }, "Prompt tokens a second, by what became of them. A hit need not be computed; each other token is computed for exactly one reason."),
    make("div", { class: "tools" }, choice), chart, legend, spaces, totals);
  offer([]);
}

const queryOf = (namespace) => (namespace === null ? OTHERS : JSON.stringify({ namespace }));

// What can be chosen; the choice stays.
function offer(namespaces) {
  const choices = [[ALL, "all namespaces, by cause"], [BY_NAMESPACE, "what is computed, by namespace"], ...namespaces.map(([name]) => [queryOf(name), `only ${namespaceName(name)}, by cause`])];
  if (JSON.stringify(choices) === offered) return;
  offered = JSON.stringify(choices);
  const chosen = choice.value || ALL;
  choice.replaceChildren(...choices.map(([value, label]) => make("option", { value }, label)));
  choice.value = choices.some(([value]) => value === chosen) ? chosen : ALL;
}

export async function update(given) {
  state = given;
  const query = choice.value, told = await get("time", JSON.parse(query));
  if (query !== choice.value) return;
  const { namespace } = JSON.parse(query);
  invalidations = told.invalidations.filter(([, name]) => name === null || namespace === undefined || name === namespace);
  const colours = query === ALL ? COLOURS : query === BY_NAMESPACE ? NAMESPACE_COLOURS : COLOURS_OF_ONE;
  const labels = query === BY_NAMESPACE ? told.labels.map(namespaceName) : told.labels.map((label) => label.replaceAll("_", " "));
  const used = labels.map((_, i) => i).filter((i) => told.rates[i]?.some(Boolean));
  draw(told.at_s, told.rates, labels, colours, used);
  offer(told.namespaces);
  tellNamespaces(told.namespaces, given.causes);
  tell(given.figures, given.cache, given.causes);
}

// Areas on top of one another: the sum of all first, and then less and less of it.
function draw(at_s, rates, labels, colours, used) {
  const shape = JSON.stringify([choice.value, used.map((i) => labels[i]), invalidations.length]);
  const sums = [], sum = at_s.map(() => 0);
  for (const i of used) { rates[i].forEach((count, at) => { sum[at] += count; }); sums.unshift(sum.slice()); }
  const data = [at_s, ...sums];
  if (shape === drawn && plot) { plot.setData(data); return; }
  drawn = shape;
  plot?.destroy();
  legend.replaceChildren(key([...used.map((i) => [labels[i], colours[i % colours.length]]), ...(invalidations.length ? [["invalidated: new weights, or a reset", "var(--ink)"]] : [])]));
  if (!used.length) { plot = null; chart.replaceChildren(make("p", { class: "dim" }, "no request so far")); return; }
  const series = used.toReversed().map((i) => ({ label: labels[i], stroke: colours[i % colours.length], fill: colours[i % colours.length], width: 0.5, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) }));
  const ink = getComputedStyle(document.body).getPropertyValue("--dim");
  const axis = { stroke: ink, grid: { stroke: "#8883", width: 1 }, ticks: { stroke: "#8883" } };
  const wall = at_s[0] > 1e9;
  plot = new uPlot({
    width: Math.min(document.querySelector("main").clientWidth - 40, 1460), height: 320, legend: { show: false },
    scales: { x: { time: wall }, y: { range: (_, __, most) => [0, Math.max(most, 1)] } },
    axes: [{ ...axis, space: 110, ...(wall ? {} : { values: (_, marks) => marks.map((mark) => `${mark} s`) }) }, { ...axis, size: 76, values: (_, marks) => marks.map(number) }],
    series: [{}, ...series], hooks: { draw: [mark] },
  }, data, (chart.replaceChildren(), chart));
}

// A line where a namespace, or all, was invalidated.
function mark({ ctx, bbox, valToPos }) {
  ctx.save();
  ctx.strokeStyle = getComputedStyle(document.body).getPropertyValue("--ink");
  ctx.setLineDash([4, 3]);
  for (const [at] of invalidations) {
    const x = valToPos(at, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

function tellNamespaces(namespaces, causes) {
  if (!namespaces.length) { spaces.replaceChildren(); return; }
  const sum = (counts) => counts.reduce((all, count) => all + count, 0), whole = sum(namespaces.map(([, counts]) => sum(counts)));
  const rows = namespaces.map(([name, counts], i) => {
    const prompts = sum(counts), most = counts.slice(1).reduce((best, count, cause) => (count > counts[1 + best] ? cause : best), 0);
    return [make("span", {}, choice.value === BY_NAMESPACE ? swatch(NAMESPACE_COLOURS[i]) : "", ` ${namespaceName(name)}`), number(prompts), percent(prompts, whole), percent(counts[0], prompts), number(prompts - counts[0]), counts[1 + most] ? `${causes[most].replaceAll("_", " ")} (${percent(counts[1 + most], prompts - counts[0])})` : ""];
  });
  const title = namespaces.some(([name]) => name === null) ? `By namespace: the ${namespaces.length - 1} with most prompt tokens, and all others together` : "By namespace";
  spaces.replaceChildren(make("h2", {}, title), table(["namespace", "#prompt tokens", "#of all", "#hit", "#computed", "most of these because"], rows, (row) => { choice.value = queryOf(namespaces[row][0]); update(state); }));
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
    parts.push(make("h2", {}, "Evicted: which pool was short"), table(["component", "tier", "#tokens computed again", "#of all misses"], evicted.sort((one, other) => other[2] - one[2]).map(([component, tier, count]) => [names[component], TIERS[tier], number(count), percent(count, whole - all.hit_tokens)])));
  }
  if (details.length) parts.push(make("h2", {}, details.length < MOST_DETAILS ? "Details" : `Details: the first ${MOST_DETAILS} that came`), table(["cause", "detail", "#tokens"], details.sort((one, other) => other[2] - one[2]).map(([cause, detail, count]) => [causes[cause].replaceAll("_", " "), detail, number(count)])));
  if (figures.policy) {
    const { name, figures: own, failures, last_failure } = figures.policy;
    const told = Object.entries(own).map(([what, value]) => [what.replaceAll("_", " "), number(Math.round(value))]);
    if (failures) told.push(["times that it failed", number(failures)], ["the last failure", last_failure]);
    parts.push(make("h2", {}, `Eviction policy: ${name}`), ...(told.length ? [table(["what", ""], told)] : []));
  }
  const drops = Object.entries(figures.drops);
  if (drops.length) parts.push(make("h2", {}, "Dropped or failed"), table(["what", "#times"], drops.map(([what, count]) => [what, number(count)])));
  if (figures.storage) {
    const { errors, last_error, is_degraded, quarantined, faults = {}, freed_bytes = 0 } = figures.storage;
    const bad = Object.entries(quarantined).map(([pool, count]) => [`corrupt pages of ${pool}, quarantined`, number(count)]);
    for (const [kind, count] of Object.entries(faults)) if (count) bad.push([`faults: ${kind.replaceAll("_", " ")}`, number(count)]);
    if (freed_bytes) bad.push(["bytes of other formats or sizes, given up", number(freed_bytes)]);
    parts.push(make("h2", {}, "Store"), table(["what", ""], [["calls that failed", number(errors)], ["it can be used at present", is_degraded ? "no" : "yes"], ...bad, ...(last_error ? [["the last error", last_error]] : [])]));
  }
  totals.replaceChildren(...parts);
}
