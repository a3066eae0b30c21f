"""Each alert of deploy/ fires for the fault that it is for, alone, and none does where all is well: `promtool test rules`.

Samples come every five minutes, for two hours, or for 26 where an alert compares with the day before.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_server import skip_unless_it_runs
from waiting import PROGRAM_S

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy/prometheus/unified_tree.rules.yml"

skip_unless_it_runs()

SMALL_SHARES = ("never_saved", "other_namespace", "unknown", "load_refused", "prefetch_given_up", "store_failed")
SLOW = {'le="0.01"': "0+10x400", 'le="2.5"': "0+100x400", 'le="+Inf"': "0+100x400"}
HEALTHY = {
    "prompt_tokens_total": "0+6000x400",
    "hit_tokens_total": "0+4500x400",
    **{f'miss_tokens_total|cause="{cause}"': "0+60x400" for cause in SMALL_SHARES},
    'miss_tokens_total|cause="load_failed"': "3x400",
    'evicted_miss_tokens_total|component="full", tier="device"': "0+100x400",
    **{f'transfer_seconds_bucket|direction="load", {bound}': "0+100x400" for bound in SLOW},
    **{f'storage_call_seconds_bucket|pool="full", call="get", {bound}': "0+100x400" for bound in SLOW},
    'drops_total|reason="host full"': "0+1x400",
    "refused_total": "0+1x400",
    'policy_failures_total|policy="Own"': "3x400",
    'pool_pages|component="full", tier="device", state="stranded"': "1x400",
    'pool_pages|component="full", tier="device", state="total"': "100x400",
    "storage_degraded": "0x400",
    "storage_errors_total": "2x400",
    'storage_faults_total|kind="not_given"': "0+10x400",
    'storage_quarantined_total|pool="full"': "7x400",
}
FAULTS: dict[str, dict[str, str]] = {
    "UnifiedTreeHitRateFell": {"hit_tokens_total": "0+4500x288 1296000+600x111"},
    "UnifiedTreePoolTooSmall": {'evicted_miss_tokens_total|component="full", tier="device"': "0+2000x400"},
    "UnifiedTreeStatesNotSaved": {'miss_tokens_total|cause="never_saved"': "0+2000x400"},
    "UnifiedTreePolicyFails": {'policy_failures_total|policy="Own"': "0+1x400"},
    "UnifiedTreeKnownInAnotherNamespace": {'miss_tokens_total|cause="other_namespace"': "0+2000x400"},
    "UnifiedTreeMissMemoryTooSmall": {'miss_tokens_total|cause="unknown"': "0+2000x400"},
    "UnifiedTreeLoadsRefused": {'miss_tokens_total|cause="load_refused"': "0+2000x400"},
    "UnifiedTreeLoadsFail": {'miss_tokens_total|cause="load_failed"': "0+1x400"},
    "UnifiedTreeLoadsSlow": {f'transfer_seconds_bucket|direction="load", {bound}': count for bound, count in SLOW.items()},
    "UnifiedTreeBackupsDropped": {'drops_total|reason="host full"': "0+1000x400"},
    "UnifiedTreeOutOfPages": {"refused_total": "0+1000x400"},
    "UnifiedTreeStranded": {'pool_pages|component="full", tier="device", state="stranded"': "40x400"},
    "UnifiedTreePrefetchGivenUp": {'miss_tokens_total|cause="prefetch_given_up"': "0+2000x400"},
    "UnifiedTreeStoreDegraded": {"storage_degraded": "1x400"},
    "UnifiedTreeStoreFails": {"storage_errors_total": "0+100x400"},
    "UnifiedTreeStoreLosesPages": {'storage_faults_total|kind="not_given"': "0+1000x400"},
    "UnifiedTreeStoreCostsHits": {'miss_tokens_total|cause="store_failed"': "0+2000x400"},
    "UnifiedTreeStoreSlow": {
        f'storage_call_seconds_bucket|pool="full", call="get", {bound}': count for bound, count in SLOW.items()
    },
    "UnifiedTreeCorruptPages": {'storage_quarantined_total|pool="full"': "0+1x400"},
}


def complaint(folder: Path, planted: dict[str, str], expected: list[str], hours: int = 2) -> str | None:
    """None if these alerts fire after so many hours and no other; else what promtool says."""
    series = []
    for name, values in {**HEALTHY, **planted}.items():
        metric, _, labels = name.partition("|")
        series.append(
            {"series": f'unified_tree_{metric}{{job="j", instance="i"{", " + labels if labels else ""}}}', "values": values}
        )
    test = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{hours}h",
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in expected],
    }
    file = folder / "rules_test.yml"
    file.write_text(
        json.dumps(
            {
                "rule_files": [str(RULES)],
                "evaluation_interval": "5m",
                "tests": [{"interval": "5m", "input_series": series, "promql_expr_test": [test]}],
            }
        )
    )
    words = ["promtool", "test", "rules", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    return None if done.returncode == 0 else done.stdout + done.stderr


def test_each_alert_has_its_fault() -> None:
    named = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert named == list(FAULTS)
    assert all(series in HEALTHY for planted in FAULTS.values() for series in planted)


def test_no_alert_fires_where_all_is_well(tmp_path: Path) -> None:
    assert complaint(tmp_path, {}, [], hours=26) is None
    unmet = complaint(tmp_path, {}, ["UnifiedTreeStranded"])
    assert unmet is not None and "UnifiedTreeStranded" in unmet, "an expectation that is not met is seen"


@pytest.mark.parametrize("alert", FAULTS)
def test_it_fires_for_its_fault_alone(alert: str, tmp_path: Path) -> None:
    assert complaint(tmp_path, FAULTS[alert], [alert], hours=26 if alert == "UnifiedTreeHitRateFell" else 2) is None
