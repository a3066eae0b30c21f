// Bytes by component, tier and state.

import { bytes, key, make, number, percent, table, TIERS } from "./api.js";

const STATES = [["protected", "#3155c6"], ["evictable", "#7fa7e8"], ["stranded", "#e8843c"], ["loading", "#3fb6b2"], ["leased", "#8d5fc4"], ["free", "transparent"]];
let at;

export function begin(section) {
  section.append(
    make("h2", {}, "Bytes by component, tier and state"),
    make("p", { class: "about" }, "Protected: held by a lock. Evictable: in the tree, free to go. Stranded: in the tree, but no length that one can resume from needs it, so it goes first. Loading: the target of a copy under way. Leased: a running request's own. Bars of one tier have one scale."),
    key(STATES.map(([name, colour]) => (name === "free" ? [name, colour, "hollow"] : [name, colour]))), (at = make("div")));
}

// What a pool holds, in pages by state; a page counts once.
export function states([, , total, used, tree, locked, stranded, , loading]) {
  const idle = Math.min(stranded, tree - locked);
  const found = { protected: locked, evictable: tree - locked - idle, stranded: idle, loading, leased: Math.max(used - tree - loading, 0) };
  return { ...found, free: total === null ? 0 : total - used };
}

export function update({ figures }) {
  at.replaceChildren(...[0, 1].map((tier) => {
    const pools = figures.pools.filter((pool) => pool[1] === tier);
    if (!pools.length) return null;
    const scale = Math.max(...pools.map((pool) => (pool[2] ?? pool[3]) * pool[9]), 1);
    const rows = pools.map((pool) => {
      const held = states(pool), size = (pool[2] ?? pool[3]) * pool[9];
      const bar = make("div", { class: "bar", style: { width: `${(100 * size) / scale}%` } }, ...STATES.map(([name, colour]) =>
        make("i", { title: `${name}: ${number(held[name])} pages, ${bytes(held[name] * pool[9])}`, style: { background: colour, flex: `${held[name]} 0 0` } })));
      return make("div", { class: "pool" }, make("b", {}, pool[0]), bar, make("small", {}, `${bytes(pool[3] * pool[9])} of ${pool[2] === null ? "no limit" : bytes(size)}`));
    });
    const numbers = pools.map((pool) => {
      const held = states(pool);
      return [pool[0], ...STATES.map(([name]) => number(held[name])), pool[2] === null ? "no limit" : number(pool[2]), percent(pool[3], pool[2]), bytes(pool[9]), number(pool[10])];
    });
    return make("div", {}, make("h2", {}, TIERS[tier]), ...rows, table(["pages", ...STATES.map(([name]) => `#${name}`), "#in all", "#used", "#a page", "#victims"], numbers));
  }).filter(Boolean));
}
