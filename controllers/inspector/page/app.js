// The tabs, and the one clock that asks for what the open view shows.

import { get, make, number, percent, seconds, tellInPages } from "./api.js";
import * as ages from "./ages.js";
import * as bytesView from "./bytes.js";
import * as flame from "./flame.js";
import * as leases from "./leases.js";
import * as misses from "./misses.js";
import * as tape from "./tape.js";
import * as walkView from "./walk.js";

const VIEWS = { bytes: ["Bytes", bytesView], tree: ["Tree", flame], walk: ["Prompt", walkView], misses: ["Misses", misses], tape: ["Tape", tape], ages: ["Ages", ages], leases: ["Leases", leases] };
const REFRESH_MS = 1000, OLD_S = 5;
const state = {};
let open = VIEWS[location.hash.slice(1)] ? location.hash.slice(1) : "bytes";

function status() {
  const { figures, tree, progress, is_over, stopped, age_s } = state;
  const parts = [];
  if (figures.nodes !== undefined) parts.push(`${number(figures.nodes)} nodes, ${number(figures.leases)} leases`);
  if (progress) parts.push(`snapshot ${Math.round((100 * progress[0]) / Math.max(progress[1], 1))} %`);
  else if (tree && !is_over) parts.push(`snapshot ${seconds(Math.max(figures.at_s - tree.at_s, 0))} old`);
  parts.push(stopped ? "stopped" : is_over ? "recording" : age_s > OLD_S ? `figures ${seconds(age_s)} old` : "live");
  document.getElementById("status").textContent = parts.join(" · ");
}

// Why nothing more is told, if something went wrong.
function ended() {
  if (state.stopped) return [make("p", { class: "broken" }, `The inspector stopped, and the cache goes on without it: ${state.stopped}`)];
  if (state.age_s > OLD_S) return [make("p", { class: "broken" }, `These figures are ${seconds(state.age_s)} old: the cache has told nothing since, so it may not be polled.`)];
  return [];
}

// What the doctor says: what is broken, and what costs most.
function findings() {
  const { totals } = state.figures;
  if (!totals) { document.getElementById("findings").replaceChildren(...ended()); return; }
  const head = `${percent(totals.hit_tokens, totals.prompt_tokens)} of ${number(totals.prompt_tokens)} prompt tokens were hits.`;
  const lines = state.findings.map(({ what, advice, share, is_urgent }) => make("p", {}, make("span", { class: is_urgent ? "broken" : "" }, `${is_urgent ? "Broken" : `${(100 * share).toFixed(1)} %`}: ${what}`), make("span", { class: "dim" }, ` ${advice}`)));
  document.getElementById("findings").replaceChildren(...ended(), make("p", {}, head), ...lines);
}

async function refresh() {
  Object.assign(state, await get("state"));
  tellInPages(state.cache.in_pages === true);
  status();
  findings();
  if (state.figures.pools) await VIEWS[open][1].update(state);
  if (!document.body.dataset.painted && state.figures.pools) {
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    document.body.dataset.painted = performance.now();
  }
}

export async function show(name) {
  const began = performance.now();
  open = name;
  location.hash = name;
  for (const view of Object.keys(VIEWS)) {
    document.getElementById(view).hidden = view !== name;
    document.getElementById(`tab-${view}`).className = view === name ? "on" : "";
  }
  await refresh();
  document.body.dataset.took = performance.now() - began;
}

async function tick() {
  try {
    await refresh();
  } catch (error) {
    document.getElementById("status").textContent = `the page's server does not answer: ${error.message}`;
  }
  setTimeout(tick, state.is_over ? 10 * REFRESH_MS : REFRESH_MS);
}

for (const [name, [label, view]] of Object.entries(VIEWS)) {
  document.getElementById("tabs").append(make("button", { id: `tab-${name}`, onclick: () => show(name) }, label));
  view.begin(document.getElementById(name), { show, state });
}
addEventListener("hashchange", () => { const name = location.hash.slice(1); if (VIEWS[name] && name !== open) show(name); });
show(open).catch((error) => { document.getElementById("status").textContent = error.message; }).finally(() => setTimeout(tick, REFRESH_MS));
