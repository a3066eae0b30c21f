// The walk of one prompt: what it hits, and the cause of each loss.

import { CAUSE_COLOURS, CAUSES, get, HIT_COLOURS, key, make, number, percent, seconds, swatch, table, TIERS, walk } from "./api.js";

const SHOWN = 100, MOST_NODES = 400;
let text, namespace, bigram, answer, list, newest, state, requests = [], chosen = null;
let begun;
const isBegun = new Promise((resolve) => { begun = resolve; });  // a prompt may be walked before the first figures have come

export function begin(section) {
  text = make("textarea", { id: "prompt", placeholder: "token ids: 17 4 2044 … or [17, 4, 2044]" });
  namespace = make("input", { placeholder: "namespace", id: "namespace" });
  bigram = make("input", { type: "checkbox", id: "bigram" });
  answer = make("div");
  list = make("div");
  newest = make("p", { class: "about" });
  section.append(make("h2", {}, "A prompt"),
    make("p", { class: "about" }, "Paste the token ids of a prompt, or choose one of the last requests below. The walk says what a request would resume from now, and why each other token would be computed. It changes nothing in the cache."),
    text, make("div", { class: "tools" }, namespace, make("label", {}, bigram, " bigrams"), make("button", { id: "do-walk", onclick: pasted }, "walk it")),
    answer, make("h2", {}, "The last requests"), newest, list);
}

export async function update(given) {
  state = given;
  begun();
  requests = await get("requests");
  const rows = requests.slice(0, SHOWN).map((request) => [request.number, seconds(Math.max(given.figures.at_s - request.at_s, 0)), request.namespace, number(request.prompt), number(request.compute_from), percent(request.compute_from, request.prompt), number(request.host), bar(request)]);
  const inAll = given.figures.totals.requests;
  newest.textContent = rows.length < inAll ? `The newest ${number(rows.length)} of ${number(inAll)} requests. The page keeps 500, of each second the last 32.` : "";
  list.replaceChildren(...(rows.length ? [legend(...requests.slice(0, SHOWN)), table(["#", "#ago", "namespace", "#prompt", "#hit", "#of it", "#from host", "causes"], rows, (row) => choose(requests[row]))] : [make("p", { class: "dim" }, "none so far")]));
}

const segments = (request) => [[0, request.compute_from, HIT_COLOURS[0], "hit"], ...request.misses.map((miss) => [miss.begin, miss.end, CAUSE_COLOURS[miss.cause], state.causes[miss.cause]])];

// What the colours of some requests mean, hits first and then causes in their order.
function legend(...shown) {
  const used = new Set(shown.flatMap((request) => request.misses.map((miss) => miss.cause)));
  const hits = shown.some((request) => request.compute_from) ? [["hit", HIT_COLOURS[0]]] : [];
  return key([...hits, ...[...used].sort((one, other) => one - other).map((cause) => [state.causes[cause].replaceAll("_", " "), CAUSE_COLOURS[cause]])]);
}

function bar(request) {
  return make("div", { class: "bar", style: { width: "220px", height: "14px" } }, ...segments(request).map(([from, to, colour, label]) => make("i", { title: `${label} [${number(from)}, ${number(to)})`, style: { background: colour, flex: `${Math.max(to - from, 0)} 0 0` } })));
}

async function choose(request) {
  chosen = request;
  answer.replaceChildren(make("h2", {}, `Request ${request.number}, as it was admitted ${seconds(Math.max(state.figures.at_s - request.at_s, 0))} ago`), strip(request), legend(request), causes(request.misses, request.prompt),
    make("div", { class: "tools" }, state.is_over ? null : make("button", { onclick: () => ask({ request: request.number }, "now") }, "walk it again, as the cache is now")));
  answer.scrollIntoView({ block: "nearest" });
}

function pasted() {
  const tokens = text.value.match(/-?\d+/g)?.map(Number) ?? [];
  ask({ tokens, namespace: namespace.value, bigram: bigram.checked }, "as pasted");
}

async function ask(question, when) {
  const began = performance.now();
  const [walked] = await Promise.all([walk(question), isBegun]);
  if (walked.error) answer.replaceChildren(make("p", { class: "error" }, walked.error));
  else show(walked, when);
  document.body.dataset.took = performance.now() - began;
}

function show(walked, when) {
  const resumed = walked.misses[0]?.begin ?? walked.reachable;
  const lines = [`A prompt of ${number(walked.prompt)} tokens${walked.namespace ? ` in namespace ${walked.namespace}` : ""}: ${walked.device === null ? `${number(walked.reachable)} can be resumed over device and host` : `${number(walked.device)} can be resumed on device`}`];
  if (walked.device !== null && walked.reachable > walked.device) lines.push(`${number(walked.reachable)} once loaded from host`);
  if (walked.left_out) lines.push(`${number(walked.left_out)} more tokens of it were left out of this walk`);
  if (walked.rebuild_tokens) lines.push(`or ${number(walked.rebuild)} after running ${number(walked.rebuild_tokens)} again to rebuild windows`);
  if (walked.path !== null) lines.push(`the paths cover ${number(walked.path)}`);
  lines.push(`the tree knows ${number(walked.known)}`);
  const names = state.cache.components.map((component) => component.name);
  const losses = walked.losses.map((loss) => [loss.component === "unknown" ? "held by no node" : loss.component, loss.component === "unknown" ? "" : loss.kept_on === null ? "on no tier" : `only on ${TIERS[loss.kept_on]}`, number(loss.begin), number(loss.end), number(loss.end - loss.begin)]);
  const nodes = walked.nodes.map((node) => [node.id, `${number(node.begin)} – ${number(node.end)}`, node.matched < node.end ? `to ${number(node.matched)}` : "all", node.boundary ? "yes" : "", node.values.map(([component, tier, pages, locked, stranded]) => `${tier ? "host " : ""}${names[component]} ${number(pages)}${locked ? " locked" : ""}${stranded ? " stranded" : ""}`).join(", ")]);
  answer.replaceChildren(...[make("h2", {}, `The walk, ${when}`), make("p", {}, `${lines.join("; ")}.`), strip({ ...walked, compute_from: resumed }), legend({ ...walked, compute_from: resumed }),
    walked.remembers ? causes(walked.misses, walked.prompt) : make("p", { class: "dim" }, "No memory of evictions is at hand here, so what is missing has no cause."),
    losses.length ? make("h2", {}, "What each component lacks, were it alone") : null, losses.length ? table(["component", "is", "#from", "#to", "#tokens"], losses) : null,
    nodes.length ? make("h2", {}, nodes.length < MOST_NODES ? "The nodes it passes" : `The last ${MOST_NODES} nodes it passes`) : null, nodes.length ? table(["#node", "#tokens", "matched", "resumable", "holds pages of"], nodes) : null].filter(Boolean));
}

const strip = (request) => make("div", { class: "strip" }, ...segments(request).filter(([from, to]) => to > from).map(([from, to, colour, label]) => make("i", { title: `${label.replaceAll("_", " ")} [${number(from)}, ${number(to)}), ${number(to - from)} tokens`, style: { background: colour, flex: `${to - from} 0 0` } })));

function causes(misses, prompt) {
  const rows = misses.map((miss) => {
    const parts = [miss.detail ?? CAUSES[state.causes[miss.cause]]];
    if (miss.evicted) parts.push(`${seconds(miss.evicted.ago_s)} before, since the ${TIERS[miss.evicted.tier]} pool of ${miss.evicted.component} was short${miss.evicted.for === null ? "" : `, to make room for ${miss.evicted.for || "requests without a namespace"}`}: ${miss.evicted.why}`);
    return [make("span", {}, swatch(CAUSE_COLOURS[miss.cause]), ` ${state.causes[miss.cause].replaceAll("_", " ")}`), number(miss.begin), number(miss.end), number(miss.end - miss.begin), percent(miss.end - miss.begin, prompt), parts.join("; ")];
  });
  return table(["computed because", "#from", "#to", "#tokens", "#of it", "that is"], rows);
}
