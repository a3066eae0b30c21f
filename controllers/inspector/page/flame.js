// The tree as a flame view: width is bytes, colour is age, ticks are the lengths that one can resume from.

import { bytes, get, make, number, seconds, table, TIERS } from "./api.js";

const ROW = 20, NOTHING = -2;
let canvas, crumbs, details, tip, shown, state, run = -1, tier = "both", hover = null, snapshot = 0, asking = false;

export function begin(section) {
  canvas = make("canvas", { class: "flame", onclick: click, onmousemove: move, onmouseleave: leave });
  crumbs = make("span", { class: "crumbs" });
  details = make("div");
  tip = make("div", { id: "tip", hidden: "" });
  const choice = make("select", { id: "tier", onchange: (event) => { tier = event.target.value; ask(); } }, ...["both", "device", "host"].map((name) => make("option", { value: name }, name === "both" ? "device and host" : name)));
  section.append(
    make("h2", {}, "The tree by namespace and session"),
    make("p", { class: "about" }, "Each rectangle is a run of tokens on which no prompt branches off: a shared system prompt, the turns of a session. Its width is the bytes that it and all below it hold, its colour the time since its last use, and its ticks the lengths that a request can resume from. Click to go into one, and on the row at the top to go back."),
    make("div", { class: "tools" }, choice, crumbs), canvas, make("p", { class: "key", id: "ages-key" }), details, tip);
  window.addEventListener("resize", () => { if (shown && !section.hidden) ask(); });
}

export async function update(given) {
  state = given;
  if (!given.tree) {
    details.replaceChildren(make("p", { class: "dim" }, "the first snapshot is on its way"));
    return;
  }
  if (given.tree.at_s !== snapshot) {
    if (snapshot && run !== -1) await keepPlace();
    snapshot = given.tree.at_s;
    await ask();
  }
}

// Runs are numbered anew in each snapshot: find the one that has the same node.
async function keepPlace() {
  const id = shown?.rectangles[0][12].match(/^#(\d+) /);
  run = (id && (await get("node", { id: id[1] }))?.run) ?? -1;
}

async function ask() {
  if (asking || !state?.tree) return;
  asking = true;
  try {
    shown = await get("flame", { run, tier, width: Math.round(canvas.clientWidth) || 1200, levels: 26 });
    const told = run === -1 ? null : await get("run", { run });
    draw();
    crumbs.replaceChildren(...shown.path.flatMap(([at, name], i) => [i ? " › " : "", at === run ? make("b", {}, name) : make("a", { onclick: () => go(at) }, name)]));
    tell(told);
  } finally { asking = false; }
}

export async function go(to) {
  const began = performance.now();
  run = to;
  await ask();
  document.body.dataset.took = performance.now() - began;
}

// Seconds since an operation of the tree; null if no ages are measured. Between two known ones it is told from both.
function age(touched) {
  const known = state.ages_of_uses;
  if (!known.length) return null;
  let low = 0, high = known.length - 1;
  while (low < high) { const middle = (low + high) >> 1; if (known[middle][0] <= touched) high = middle; else low = middle + 1; }
  const [older, since] = known[low], [newer, less] = known[Math.max(low - 1, 0)];
  const part = newer > older ? Math.min(Math.max((newer - touched) / (newer - older), 0), 1) : 1;
  return less + part * (since - less);
}

const lastUse = (touched) => { const since = age(touched); return since === null ? `${number(shown.clock - touched)} operations ago` : `${seconds(since)} ago`; };

function colour(touched) {
  const since = age(touched);
  const part = since === null
    ? Math.log1p(Math.max(shown.clock - touched, 0)) / Math.log1p(shown.clock || 1)
    : Math.min(Math.log1p(since) / Math.log1p(3600), 1);
  return `hsl(${12 + 208 * part} ${78 - 30 * part}% ${58 + 8 * part}%)`;
}

function draw() {
  const width = canvas.clientWidth, scale = devicePixelRatio || 1;
  const height = ROW * (1 + Math.max(...shown.rectangles.map((shape) => shape[1])));
  canvas.style.height = `${height}px`;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  for (const shape of shown.rectangles) paint(pen, shape, width);
  document.getElementById("ages-key").replaceChildren(...[0, 10, 60, 600, 3600].map((since) => {
    const part = Math.log1p(since) / Math.log1p(3600);
    return make("span", {}, make("i", { style: { background: `hsl(${12 + 208 * part} ${78 - 30 * part}% ${58 + 8 * part}%)` } }), since ? seconds(since) : "just used");
  }), make("span", {}, make("i", { style: { background: "#9aa5b8" } }), "a namespace, or all"), make("span", {}, make("i", { style: { background: "#8884" } }), "too narrow, added up"),
    make("span", {}, make("i", { class: "tick", style: { background: "var(--ink)" } }), "a length to resume from"), `colours: last use; ${number(shown.rectangles.length)} rectangles of ${number(state.tree.runs)} runs, ${number(state.tree.nodes)} nodes`);
}

function paint(pen, [at, level, left, part, , , , , , touched, ticks, , label], width) {
  const x = left * width, wide = part * width, y = level * ROW;
  pen.fillStyle = at === NOTHING ? "#8884" : at === -1 ? "#9aa5b8" : colour(touched);
  pen.fillRect(x, y, Math.max(wide - (wide > 3 ? 1 : 0), 0.7), ROW - 1);
  if (wide > 24) {
    pen.fillStyle = "#0009";
    for (const tick of ticks) pen.fillRect(x + Math.max(tick * wide - 2, 0), y + ROW - 6, 1, 5);
  }
  if (wide > 46) {
    pen.save();
    pen.beginPath();
    pen.rect(x, y, wide - 4, ROW);
    pen.clip();
    pen.fillStyle = at === NOTHING ? "#888" : "#111c";
    pen.fillText(label, x + 4, y + ROW / 2 - 1);
    pen.restore();
  }
}

function find(event) {
  const box = canvas.getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width, level = Math.floor((event.clientY - box.top) / ROW);
  return shown?.rectangles.find((shape) => shape[1] === level && shape[2] <= x && x < shape[2] + shape[3]) ?? null;
}

function move(event) {
  const shape = find(event);
  tip.hidden = !shape;
  if (!shape) return;
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - 280)}px`;
  tip.style.top = `${event.clientY + 14}px`;
  if (shape === hover) return;
  hover = shape;
  const [, , , part, start, end, size, nodes, tokens, touched, , boundaries, label] = shape;
  tip.textContent = [label, `${bytes(size)}, ${(100 * part).toFixed(1)} % of the top row`, end ? `${number(end - start)} tokens, ${number(boundaries)} lengths to resume from` : "", `${number(tokens)} tokens in ${number(nodes)} nodes with all below`, `last used ${lastUse(touched)}`].filter(Boolean).join("\n");
}

function leave() { tip.hidden = true; hover = null; }

function click(event) {
  const shape = find(event);
  if (!shape || shape[0] === NOTHING) return;
  leave();
  go(shape[1] === 0 ? shown.path[Math.max(shown.path.length - 2, 0)][0] : shape[0]);
}

function tell(told) {
  const branches = told?.largest.length ? [make("h2", {}, told.largest.length < told.children ? `Its ${told.largest.length} largest branches of ${number(told.children)}` : "Its branches"), table(["run", "#bytes", "#nodes"], told.largest.map(([, label, size, nodes]) => [label, bytes(size), number(nodes)]), (row) => go(told.largest[row][0]))] : [];
  if (!told?.holdings) { details.replaceChildren(...branches); return; }
  const names = state.cache.components.map((component) => component.name);
  details.replaceChildren(make("h2", {}, told.label),
    make("p", {}, `${number(told.end - told.start)} tokens in ${number(told.nodes)} nodes, ${number(told.children)} branches with ${number(told.below)} nodes below; ${number(told.boundaries)} lengths to resume from${told.last_boundaries.length ? `, the last at ${told.last_boundaries.slice(-4).map(number).join(", ")}` : ""}; last used ${lastUse(told.touched)}.`),
    table(["holds", "tier", "#values", "#pages", "#bytes", "#locked", "#stranded", "#copying"], told.holdings.map((held) => [names[held.component], TIERS[held.tier], number(held.values), number(held.pages), bytes(held.bytes), number(held.locked), number(held.stranded), number(held.copying)])), ...branches);
}
