"""The results as a table to read and as rows to compute with."""

from __future__ import annotations

import textwrap
from typing import Any

from benches.case import Case
from benches.catalogue import IMPORT, IMPORT_QUESTION, SCENARIOS
from benches.measuring import USUAL, Outcome

Row = dict[str, Any]
RIVALS = ("rust", "python", "floor", "sglang_pools")
HEAD = (
    f"{'operation':<25}{'components':<15}{'page':>5}{'tokens':>9}{'depth':>6}{'prompts':>8}{'nodes':>9} |"
    f"{'ours µs':>10}{'min':>9}{'max':>10}{'ns/tok':>8} |{'rust':>10}{'python':>11} |{'ratio':>7} {'rounds':<11}|"
    " answers"
)


def row_of(case: Case, outcomes: dict[str, Outcome], machine: str, commit: str | None, core: str) -> Row:
    """One object of bench.json. Times are microseconds, `ratio` ours to Rust's; null is what was not measured."""
    if "prefix_cache" in outcomes:
        outcomes = outcomes | {"ours": outcomes["prefix_cache"], "rust": outcomes.get("sglang", Outcome())}
    ours, rust = outcomes.get("ours", Outcome()), outcomes.get("rust", Outcome())
    row: Row = {
        "operation": case.operation,
        "components": case.components,
        "page_size": case.page_size,
        "length_tokens": case.length,
        "depth": case.depth,
        "prompts": case.paths,
        "tree_nodes": case.tree_nodes,
        "series": case.series,
        "samples": len(ours.samples),
        "ours_us": _us(ours),
        **{f"{name}_us": _us(outcomes.get(name, Outcome())) for name in RIVALS},
        "ratio": _ratio(ours.median, rust.median),
        "ratio_of_means": _ratio(ours.mean, rust.mean),
        "ratio_python": _ratio(ours.median, outcomes.get("python", Outcome()).median),
        "ratio_by_round": [_ratio(a, b) for a, b in zip(ours.round_medians, rust.round_medians, strict=False)],
        "ours_ns_per_token": round(ours.median / case.length, 3) if case.length and ours.median else None,
        "hash": ours.digest or None,
        "answers_agree": agreement(ours, outcomes),
        "machine": machine,
        "commit": commit,
        "ours_core": core,
    }
    for name, outcome in ({"ours": ours} | {name: outcomes.get(name, Outcome()) for name in RIVALS}).items():
        low, high = outcome.extremes or (None, None)
        scale = 1000 if outcome.unit == "ns" else None
        row[f"{name}_us_min"] = low / scale if low is not None and scale else None
        row[f"{name}_us_max"] = high / scale if high is not None and scale else None
        row[f"{name}_bytes"] = outcome.median if outcome.unit == "bytes" else None
        if name != "ours":
            row[f"{name}_hash"] = outcome.digest or None
        row[f"{name}_hit_rate"] = outcome.facts.get("hit_rate")
        row[f"{name}_hit_tokens"] = outcome.facts.get("hit_tokens")
        row[f"{name}_us_mean"] = _rounded_us(outcome, outcome.mean)
        row[f"{name}_parts_us"] = {part: round(ns / 1000, 2) for part, ns in outcome.parts_ns.items()} or None
        row[f"{name}_missing"] = outcome.missing or None
    return row


def _us(outcome: Outcome) -> float | None:
    return _rounded_us(outcome, outcome.median)


def _rounded_us(outcome: Outcome, figure: float | None) -> float | None:
    return round(figure / 1000, 3) if figure is not None and outcome.unit == "ns" else None


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return round(ours / theirs, 4) if ours is not None and theirs else None


def agreement(ours: Outcome, outcomes: dict[str, Outcome]) -> bool | None:
    """Whether SGLang's cores gave the same answers as we; None where there is nothing to compare."""
    digests = {outcomes[name].digest for name in ("rust", "python") if name in outcomes and outcomes[name].digest}
    return digests == {ours.digest} if digests and ours.digest else None


def line_of(row: Row) -> str:
    """One line of the table."""
    size = _figure("bytes" if row["ours_bytes"] is not None else "us", row)
    by_round = [ratio for ratio in row["ratio_by_round"] if ratio is not None]
    spread = f"{min(by_round):.2f}-{max(by_round):.2f}" if len(by_round) > 1 else ""
    answers = {True: "same", False: "differ", None: ""}[row["answers_agree"]]
    if row["ours_hit_rate"] is not None:
        rates = [row[f"{name}_hit_rate"] for name in ("ours", "rust")]
        answers += " hit " + " / ".join(f"{rate:.1%}" for rate in rates if rate is not None)
    ratio = f"{row['ratio']:.2f}" if row["ratio"] is not None else ""
    components, page = (row["components"], row["page_size"]) if row["operation"] != IMPORT else ("", "")
    return (
        f"{row['operation']:<25}{components:<15}{page:>5}{row['length_tokens'] or '':>9}"
        f"{row['depth'] if row['length_tokens'] else '':>6}{row['prompts']:>8}{row['tree_nodes'] or '':>9} |"
        f"{size('ours'):>10}{_number(row['ours_us_min']):>9}{_number(row['ours_us_max']):>10}"
        f"{_number(row['ours_ns_per_token']):>8} |{size('rust'):>10}{size('python'):>11} |{ratio:>7} {spread:<11}|"
        f" {answers}"
    )


def _figure(unit: str, row: Row) -> Any:
    def show(name: str) -> str:
        value = row[f"{name}_{unit}"]
        return "-" if value is None else f"{value:.0f} B" if unit == "bytes" else _number(value)

    return show


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def preamble(machine: str, commit: str | None, core: str, absent: dict[str, str]) -> str:
    """The lines over the table."""
    lines = [f"machine  {machine}", f"commit   {commit or 'unknown'}, {core}"]
    lines += [f"absent   {name}: {reason}" for name, reason in absent.items()]
    note = (
        "Medians in µs of a whole operation through the public API, in turns on one processor; a fresh token array becomes "
        "a key inside the time. rust and python are SGLang's UnifiedRadixCache with either core; "
        "of whole requests (serve_…) rust is what SGLang's scheduler calls. ratio is "
        "ours to rust's, its spread over the rounds beside it. answers compares match lengths and survivors; windows are "
        "kept differently by design, so chats with them differ, and their hit rates say which way."
    )
    return "\n".join([*lines, "", *textwrap.wrap(note, 120), ""])


def profile(rows: list[Row]) -> str:
    """Where the time of a whole request goes: ours / rust, mean µs a part."""
    lines = []
    for row in rows:
        ours, rust = row["ours_parts_us"], row["rust_parts_us"] or {}
        if ours:
            parts = (f"{part} {us:.1f}" + (f"/{rust[part]:.1f}" if part in rust else "") for part, us in ours.items())
            lines.append(f"{row['operation']:<25}{row['components']:<15}{row['page_size']:>5} | {', '.join(parts)}")
    return "\n".join(["Profile of a request, mean µs a part, ours/rust:", *lines]) if lines else ""


def questions(rows: list[Row]) -> str:
    """What each operation answers, and what it does not."""
    lines = []
    for name in dict.fromkeys(row["operation"] for row in rows):
        if name == IMPORT:
            lines.append(f"{name:<25} {IMPORT_QUESTION}")
        else:
            lines.append(f"{name:<25} {SCENARIOS[name].question} Not: {SCENARIOS[name].silent_on}.")
    return "\n".join(lines)


def reasons(rows: list[Row], absent: dict[str, str]) -> str:
    """Why figures are missing, each reason once."""
    seen: dict[str, dict[str, None]] = {}
    for row in rows:
        for name in ("ours", *RIVALS):
            reason = row[f"{name}_missing"]
            if reason and name not in absent:
                seen.setdefault(f"{name}: {reason}", {})[row["operation"]] = None
    return "\n".join(f"{reason} ({', '.join(operations)})" for reason, operations in seen.items())


__all__ = ["HEAD", "USUAL", "Row", "line_of", "preamble", "profile", "questions", "reasons", "row_of"]
