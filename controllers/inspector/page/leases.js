// The leases that hold most, and those that hold longest.

import { bytes, get, make, number, percent, seconds, table } from "./api.js";

let at;

export function begin(section) {
  at = make("div", { class: "columns" });
  section.append(make("h2", {}, "Leases"), make("p", { class: "about" }, "What running requests hold: all pages, and of these their own, which nobody else can use. Committed tokens are in the tree, for others to hit."), at);
}

export async function update() {
  const { count, largest, longest } = await get("leases");
  const part = (title, leases) => make("div", {}, make("h2", {}, title), table(["#request", "namespace", "#held for", "#holds", "#its own", "#prompt", "#cached", "#length", "#committed", ""],
    leases.map((lease) => [lease.number ?? "", lease.namespace, lease.held_s === null ? "since before" : seconds(lease.held_s), bytes(lease.bytes), bytes(lease.private), number(lease.prompt), percent(lease.cached, lease.prompt), number(lease.length), number(lease.committed), lease.loading ? "loading" : ""])));
  at.replaceChildren(...(count ? [part(`${number(largest.length)} that hold most, of ${number(count)}`, largest), part(`${number(longest.length)} that hold longest, of ${number(count)}`, longest)] : [make("p", { class: "dim" }, "none is open")]));
}
