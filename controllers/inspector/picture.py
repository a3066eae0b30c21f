"""What a page shows: the last frames of each kind, put together."""

from __future__ import annotations

import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.doctor.figures import Figures, PoolFigures, label_of, namespaces_of, sizes_of, summed
from unified_tree.controllers.inspector.figures import POOL_FIELDS
from unified_tree.controllers.inspector.frames import check_tree
from unified_tree.controllers.inspector.timeline import NamespaceTimeline, Timeline
from unified_tree.controllers.inspector.tree_picture import TreePicture
from unified_tree.controllers.inspector.tree_walk import COLUMNS
from unified_tree.misses.miss_cause import MissCause
from unified_tree.terms.errors import ConfigurationError
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unified_tree.controllers.inspector.frames import Frame


MAX_EVENTS = 2000
MAX_REQUESTS = 500
MAX_INVALIDATIONS = 50
LABELS = ["hit on device", "hit from host", "hit from store", *(cause.label for cause in MissCause)]


class Picture:
    """One thread feeds it. Others read; what they read is replaced, not changed.

    Attributes:
        cache: what the cache is made of.
        figures: the last.
        leases: the last.
        tree: the last whole snapshot; None before the first.
        tokens: the tokens of its nodes, by index, in a recording that has them.
        progress: nodes read of the snapshot under way, and how many there are; None if none is.
        is_over: no more frames come; `stopped`: why not, if something went wrong.
    """

    def __init__(self) -> None:
        self.cache: Mapping[str, Any] = {}
        self.figures: dict[str, Any] = {}
        self.leases: Mapping[str, Any] = {"count": 0, "largest": [], "longest": []}
        self.tree: TreePicture | None = None
        self.tokens: list[bytes] | None = None
        self.progress: tuple[int, int] | None = None
        self.is_over = False
        self.stopped: str | None = None
        self._timeline = Timeline(len(LABELS))
        self._namespaces = NamespaceTimeline()
        self._events: deque[tuple[int, list[Any]]] = deque(maxlen=MAX_EVENTS)
        self._invalidations: deque[tuple[float, str | None]] = deque(maxlen=MAX_INVALIDATIONS)
        self._requests: deque[dict[str, Any]] = deque(maxlen=MAX_REQUESTS)
        self._event_count = 0
        self._left_out = 0
        self._told_s = monotonic()
        self._lock = threading.Lock()
        self._ages: list[list[float]] = []
        self._begun: Mapping[str, Any] = {}
        self._rows: list[bytes] = []
        self._values: list[bytes] = []
        self._edges: list[bytes] = []
        self._roots: list[tuple[str, bool, bool]] = []

    def feed(self, frame: Frame) -> None:
        """Take in a frame; answers are not for it."""
        fields = frame.fields
        if frame.kind == "cache":
            self.cache = fields
        elif frame.kind == "figures":
            self._feed_figures(dict(fields))
        elif frame.kind == "happened":
            self._feed_happened(fields)
        elif frame.kind == "leases":
            self.leases = fields
        elif frame.kind == "tree begins":
            self._begun = fields
            self._rows, self._values, self._edges, self._roots = [], [], [], []
            self.progress = (0, fields["nodes"])
        elif frame.kind == "nodes":
            self._feed_nodes(fields, bytes(frame.body))
        elif frame.kind == "tree ends":
            self._end_tree()
        elif frame.kind == "stopped":
            self.stopped, self.is_over, self.progress = fields["why"], True, None

    def _feed_figures(self, fields: dict[str, Any]) -> None:
        totals = fields["totals"]
        with self._lock:
            from_host = totals["host_hit_tokens"] - totals["storage_hit_tokens"]
            on_device = totals["hit_tokens"] - totals["host_hit_tokens"]
            hits = [on_device, from_host, totals["storage_hit_tokens"]]
            self._timeline.add(fields["at_s"], np.array([*hits, *fields["misses"]], np.int64))
            self._namespaces.add(fields["at_s"], fields.pop("namespaces"))
            self.figures = fields
            self._told_s = monotonic()

    @property
    def age_s(self) -> float:
        """How long ago the figures came; 0 where no more come, or none have."""
        return 0.0 if self.is_over or not self.figures else monotonic() - self._told_s

    def _feed_happened(self, fields: Mapping[str, Any]) -> None:
        with self._lock:
            for event in fields["events"]:
                self._event_count += 1
                self._events.append((self._event_count, event))
                if event[1] == "invalidated":
                    self._invalidations.append((event[0], event[4]))
            self._requests.extend(fields["requests"])
            self._left_out = fields["left_out"]

    def _feed_nodes(self, fields: Mapping[str, Any], body: bytes) -> None:
        rows, values = 8 * fields["rows"], 8 * fields["values"]
        self._rows.append(body[:rows])
        self._values.append(body[rows : rows + values])
        self._roots += [(name, bigram, is_retired) for name, bigram, is_retired in fields["roots"]]
        self._edges.append(body[rows + values :])
        if self.progress is None:
            raise ConfigurationError("nodes are of a tree that has not begun")
        self.progress = (self.progress[0] + fields["rows"] // COLUMNS, self.progress[1])

    def _end_tree(self) -> None:
        if self.progress is None:
            raise ConfigurationError("a tree ends that has not begun")
        rows = np.frombuffer(b"".join(self._rows), np.int64)
        values = np.frombuffer(b"".join(self._values), np.int64)
        page_bytes = [component["page_bytes"] for component in self.cache.get("components", ())]
        check_tree(rows.reshape(-1, COLUMNS), values, len(self._roots), len(page_bytes))
        tree = TreePicture(rows, values, self._roots, page_bytes, self._begun["clock"], self._begun["at_s"])
        tree.prepare()
        edges = b"".join(self._edges)
        self.tokens = self._cut(tree, edges) if edges else None
        self._ages = self._begun["ages"]
        self.tree, self.progress = tree, None
        self._rows, self._values, self._edges = [], [], []

    def _cut(self, tree: TreePicture, edges: bytes) -> list[bytes]:
        tokens, at = [], 0
        for _, _, start, end, root, *_ in tree.rows.tolist():
            size = (end - start) * (16 if self._roots[root][1] else 8)
            tokens.append(edges[at : at + size])
            at += size
        return tokens

    def events(self, after: int) -> dict[str, Any]:
        """The events behind the one of this number."""
        with self._lock:
            found = [[number, *event] for number, event in self._events if number > after]
        return {"last": self._event_count, "kept": MAX_EVENTS, "events": found, "left_out": self._left_out}

    def requests(self) -> list[dict[str, Any]]:
        """The last requests, the last first."""
        with self._lock:
            return list(self._requests)[::-1]

    def over_time(self, *, by_namespace: bool = False) -> dict[str, Any]:
        """Hits and misses over time, in tokens a second; or the misses by namespace."""
        with self._lock:
            shown = self._namespaces.computed() if by_namespace else {"labels": LABELS, **self._timeline.shown()}
            return {**shown, **self._beside()}

    def over_time_of(self, namespace: str | None) -> dict[str, Any]:
        """Hits and misses of one namespace over time; None for those that have no name here."""
        with self._lock:
            return {**self._namespaces.of(namespace), **self._beside()}

    def new_by_namespace(self) -> dict[str, dict[str, int]]:
        """Of the tokens that no prompt had before, those by cause and namespace; of the namespaces with a name on the page."""
        with self._lock:
            totals = [(name, tokens) for name, tokens in self._namespaces.totals() if name is not None]
        found = {
            cause.label: {name: tokens[1 + cause] for name, tokens in totals if tokens[1 + cause]}
            for cause in (MissCause.NEVER_SEEN, MissCause.DIVERGED)
        }
        return {label: by_namespace for label, by_namespace in found.items() if by_namespace}

    def _beside(self) -> dict[str, Any]:
        return {"namespaces": self._namespaces.totals(), "invalidations": list(self._invalidations)}

    def state(self) -> dict[str, Any]:
        """What changes all the time and is small."""
        tree = self.tree
        return {
            "cache": self.cache,
            "figures": self.figures,
            "age_s": self.age_s,
            "is_over": self.is_over,
            "stopped": self.stopped,
            "has_tokens": self.tokens is not None,
            "progress": self.progress,
            "causes": [cause.label for cause in MissCause],
            "ages_of_uses": self._ages,
            "tree": None
            if tree is None
            else {"at_s": tree.at_s, "clock": tree.clock, "nodes": len(tree.rows), "runs": tree.run_count},
        }


def figures_of(picture: Picture) -> Figures:
    """The figures of a picture that has some."""
    shown, cache = picture.figures, picture.cache
    stored, policy = shown.get("storage", {}), shown.get("policy", {})
    names = [component["name"] for component in cache["components"]]
    kinds = {component["name"]: component["kind"] for component in cache["components"]}
    evicted = {(names[component], tier): tokens for component, tier, tokens in shown["evicted"]}
    short_by = {(names[component], tier): tokens for component, tier, tokens in shown["short_by"]}
    pools = []
    for row in shown["pools"]:
        pool = dict(zip(POOL_FIELDS, row, strict=True))
        name, tier = pool["component"], int(pool["tier"])
        pools.append(
            PoolFigures(
                **{each: pool[each] for each in ("component", "total", "used", "protected", "victims")},
                tier=Tier(tier).name.lower(),
                kind=kinds[name],
                stranded=pool["stranded"] if tier == Tier.DEVICE else 0,
                page_bytes=0 if cache.get("in_pages") else pool["page_bytes"],
                evicted_tokens=evicted.get((name, tier), 0),
                short_by=sizes_of(short_by.get((name, tier), ())),
            )
        )
    return Figures(
        page_size=cache["page_size"],
        save_grid_tokens=cache["save_grid_tokens"],
        prompt_tokens=shown["totals"]["prompt_tokens"],
        hit_tokens=shown["totals"]["hit_tokens"],
        misses={cause.label: tokens for cause, tokens in zip(MissCause, shown["misses"], strict=True) if tokens},
        details=summed((label_of(cause, detail), tokens) for cause, detail, tokens in shown["details"]),
        namespaces=namespaces_of(shown.get("of_namespaces", ())) | picture.new_by_namespace(),
        beneficiaries=shown["beneficiaries"],
        drops=shown["drops"],
        requests=shown["totals"]["requests"],
        namespace_count=shown.get("namespace_count", 0),
        pools=pools,
        ghost_bytes=cache["ghost_bytes"],
        policy_failures=policy.get("failures", 0),
        last_policy_failure=policy.get("last_failure"),
        store_quarantined=sum(stored.get("quarantined", {}).values()),
        store_errors=stored.get("errors", 0),
        store_faults=stored.get("faults", {}),
        store_freed_bytes=stored.get("freed_bytes", 0),
        store_is_degraded=stored.get("is_degraded", False),
        age_s=picture.age_s,
    )
