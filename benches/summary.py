"""The one table: for each scenario ours, the rival's, the floor, and how ours grows with size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benches.report import Row
from benches.serving_scenarios import DECODED_TOKENS
from benches.slope import slope

STEPS = {
    "admit": "acquire a prompt that is cached but for a page",
    "rows": "page ids of it into a row",
    "allocate": "allocate a page",
    "commit": "commit a page",
    "decode": "a token of answer: allocate, row, advance",
    "finish": "commit the answer, release",
}
OPERATIONS = {
    "key_from_list": "a list of tokens becomes a key",
    "match_pages": "tree: match, page ids handed out",
    "insert": "tree: insert 1,024 tokens",
    "lock_unlock": "tree: lock and unlock",
    "evict": "tree: evict a page",
}
REQUESTS = {
    "serve_chats": "a chat's turn",
    "serve_chats_decoding": "the same, 200 tokens of answer one by one",
    "serve_agents": "an agent's turn, up to 112k tokens",
    "serve_conversation_trace": "trace of chats",
    "serve_agent_trace": "trace of coding agents",
}
KINDS = {"full": "full", "full_swa": "full + window", "full_mamba": "full + Mamba"}
REFERENCE_SIZE = 131_072
"""What is shown of several sizes: the largest up to this one."""
BEGIN, END = "<!-- make bench -->", "<!-- end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the table. Times are microseconds; None is what was not measured.

    Attributes:
        of_totals: ours to the rival's summed over all requests, where `ratio` is that of the medians.
        growth: the exponent over sizes.
        own_pools: the rival's time with its own allocators, on a CPU.
        hits: tokens found cached, ours and the rival's.
    """

    scenario: str
    kinds: str
    ours: float
    rival: float | None
    floor: float | None
    of_totals: float | None = None
    growth: float | None = None
    own_pools: float | None = None
    hits: tuple[int, int | None] | None = None

    @property
    def ratio(self) -> float | None:
        """Ours to the rival's."""
        return self.ours / self.rival if self.rival else None

    def cells(self) -> list[str]:
        """As text."""
        hits = "" if self.hits is None else " / ".join(f"{count:,}" for count in self.hits if count is not None)
        over = f"{self.ours / self.floor:.1f}" if self.floor else ""
        return [
            self.scenario,
            self.kinds,
            number(self.ours),
            number(self.rival),
            _two(self.ratio),
            _two(self.of_totals),
            number(self.floor),
            over,
            _two(self.growth),
            number(self.own_pools),
            hits,
        ]


def lines(rows: Iterable[Row]) -> list[Line]:
    """The table's lines: steps, operations of the tree, whole requests."""
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        if row.get("ours_us") is not None:
            groups.setdefault((row["operation"], row["components"], row["page_size"]), []).append(row)
    floors = {(row["page_size"], row["length_tokens"]): row["ours_us"] for row in _of(groups, "match_floor")}
    found: list[Line] = []
    for (operation, components, page_size), group in groups.items():
        kinds = f"{KINDS[components]}, page {page_size}"
        if operation == "serve_next_page":
            found += _steps(kinds, group)
        elif operation in OPERATIONS:
            row = _reference(group)
            floor = floors.get((page_size, row["length_tokens"])) if operation == "match_pages" else row["floor_us"]
            name = f"{OPERATIONS[operation]}, {_size(row):,} {'nodes' if row['tree_nodes'] else 'tokens'}"
            growth = slope([(_size(each), each["ours_us"]) for each in group])
            found.append(
                Line(scenario=name, kinds=kinds, ours=row["ours_us"], rival=row["rust_us"], floor=floor, growth=growth)
            )
        elif operation in REQUESTS:
            found.append(_request(kinds, group[0]))
    return sorted(found, key=_place)


def _place(line: Line) -> int:
    names = [OPERATIONS["key_from_list"], *STEPS.values(), *OPERATIONS.values(), *REQUESTS.values()]
    return next(place for place, name in enumerate(names) if line.scenario == name or line.scenario.startswith(f"{name}, "))


def _of(groups: dict[tuple[str, str, int], list[Row]], operation: str) -> Iterator[Row]:
    return (row for (name, _, _), group in groups.items() if name == operation for row in group)


def _size(row: Row) -> int:
    return int(row["tree_nodes"] or row["length_tokens"])


def _reference(group: list[Row]) -> Row:
    return max((row for row in group if _size(row) <= REFERENCE_SIZE), key=_size, default=group[0])


def _steps(kinds: str, group: list[Row]) -> Iterator[Line]:
    row = _reference(group)
    rival, floor = row["rust_parts_us"] or {}, row["floor_parts_us"] or {}
    for part, name in STEPS.items():
        count = DECODED_TOKENS if part == "decode" else 1
        yield Line(
            scenario=f"{name}, {_size(row):,} tokens",
            kinds=kinds,
            ours=row["ours_parts_us"][part] / count,
            rival=rival[part] / count if part in rival else None,
            floor=floor[part] / count if part in floor else None,
            growth=slope([(_size(each), each["ours_parts_us"][part]) for each in group]),
        )


def _request(kinds: str, row: Row) -> Line:
    return Line(
        scenario=REQUESTS[row["operation"]],
        kinds=kinds,
        ours=row["ours_us"],
        rival=row["rust_us"],
        floor=row["floor_us"],
        of_totals=row["ratio_of_means"],
        own_pools=row["sglang_pools_us"],
        hits=(row["ours_hit_tokens"], row["rust_hit_tokens"]),
    )


def table(found: Iterable[Line]) -> str:
    """In Markdown."""
    timed = ["ours µs", "SGLang µs", "ratio", "of totals", "floor µs", "to floor", "growth", "SGLang's own pools µs"]
    head = ["scenario", "kinds", *timed, "hit tokens"]
    return _markdown(head, (line.cells() for line in found))


def short_table(found: Iterable[Line]) -> str:
    """Whole requests only, a column for each set of kinds and page: ours / SGLang = ratio."""
    of = {(line.scenario, line.kinds): line for line in found if line.scenario in REQUESTS.values()}
    columns = list(dict.fromkeys(kinds for _, kinds in of))
    body = ([name, *(_brief(of.get((name, kinds))) for kinds in columns)] for name in REQUESTS.values())
    return _markdown(["a request, µs", *columns], body)


def _brief(line: Line | None) -> str:
    if line is None or line.ratio is None:
        return "" if line is None else number(line.ours)
    return f"{number(line.ours)} / {number(line.rival)} = {line.ratio:.2f}"


def _markdown(head: list[str], body: Iterable[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body))


def number(value: float | None) -> str:
    """Three digits that count.

    >>> number(1234.5), number(56.78), number(0.1234), number(None)
    ('1,234', '56.8', '0.123', '')
    """
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _two(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


NOTE = """\
Contestants take turns on one processor, over the same requests and capacities. Figures are medians in µs; of requests the
median over them, each the fastest of three lives of the cache in processor time, and `of totals` compares the sums of all.
SGLang is what its scheduler calls: match, lock, slots into rows, a checkpoint for each chunk of 8,192 tokens and at the end,
frees; over its compiled tree core, with pools that cost nothing (its own, on a CPU, stand in a column of theirs). The floor is
measured in the same run: one copy of the prompt, one comparison of what is cached, its page ids, page ids into rows, a copy of
what stays in the tree, two empty calls a token of answer. Growth is the exponent over sizes from 1k up to 1M tokens, or 100k
nodes: 0 is flat, 1 is linear."""


def page(rows: list[Row]) -> str:
    """The file of results: what was measured on what, and the table."""
    first = rows[0]
    return f"""# What steps and requests cost

`make bench` wrote this file: {first["machine"]}; hot modules {first["ours_core"]}, commit {first["commit"]}.

{NOTE}

{table(lines(rows))}
"""


def rewrite(page: Path, rows: list[Row]) -> None:
    """Put the short table between the two marks."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{page} lacks {BEGIN} … {END}")
    page.write_text(f"{before}{BEGIN}\n\n{short_table(lines(rows))}\n\n{END}{after}")
