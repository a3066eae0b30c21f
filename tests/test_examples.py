"""The examples run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PROGRAM_S

from unified_tree.controllers.adapters.sglang.settings import VARIABLE
from unified_tree.controllers.adapters.sglang.settings import Settings as SglangSettings
from unified_tree.controllers.adapters.vllm.connector_settings import TESTED_VERSIONS, ConnectorSettings

ROOT = Path(__file__).parents[1]


def printed(example: str) -> list[str]:
    """The lines that an example prints."""
    program = [sys.executable, str(ROOT / "examples" / example)]
    ran = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM_S, check=True)
    return ran.stdout.splitlines()


def test_a_scheduler_embeds_the_cache() -> None:
    """Prompts share 600 tokens, nine pages of 64; the last four come for the second time."""
    first, second = printed("embed.py")
    assert first == f"cached tokens of each prompt: 0 {'576 ' * 11}896 896 896 896"
    assert second == "hit rate 69%, violations []"
    assert len((ROOT / "examples/embed.py").read_text().splitlines()) <= 70


def test_a_server_of_ones_own_answers_as_without_a_cache() -> None:
    """Over windows and over recurrent states, with fewer pages than the requests want."""
    for line, model in zip(printed("own_server.py"), ("gemma3_text", "qwen3_next"), strict=True):
        found = re.fullmatch(rf"{model}: 20 of 20 answers equal .*, (\d+)% of the prompt tokens hit, (\d+) preemptions", line)
        assert found is not None, line
        assert int(found[1]) > 0
        assert int(found[2]) > 0


def test_prompts_with_states_are_hit_on_host() -> None:
    """Four of twelve prompts come for the second time, of 24 tokens in whole pages each."""
    assert printed("states_and_batch.py") == ["12 requests; 96 tokens hit, 96 on host; []"]


def test_prompts_come_back_from_host_with_their_bytes() -> None:
    """Eight prompts of 101 tokens; the last four come for the second time, of 96 tokens in whole pages each."""
    assert printed("host_tier.py") == ["384 of 808 tokens hit, 384 of these on host; []"]


def test_a_decode_server_gets_what_it_lacks_of_a_prompt() -> None:
    """The cached tokens, from where on state arrives, and the tokens of the state: of a new prompt, and of the next turn."""
    first, second, totals = printed("remote_prefill.py")
    assert first == "0 {'full': 0, 'swa': 8, 'mamba': 18} 18"
    assert second == "24 {'full': 24, 'swa': 24, 'mamba': 33} 33"
    assert totals == "27 []"


def test_a_policy_of_ones_own_keeps_system_prompts() -> None:
    """Four fifths of the prompts begin with 512 tokens of a system prompt: 61.5% of all tokens."""
    assert printed("custom_policy.py") == ["lru hits 53.2% of the prompt tokens", "Lrfu hits 60.7% of the prompt tokens"]


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    """A folder of programs that append how they were called, as JSON, to the file `calls` in it."""
    for name in ("python", "vllm"):
        program = tmp_path / name
        lines = [
            f"#!{sys.executable}",
            "import json, os, sys",
            f"call = [{name!r}, sys.argv[1:], os.environ.get('UNIFIED_TREE_SGLANG_CONFIG')]",
            f"open({str(tmp_path / 'calls')!r}, 'a').write(json.dumps(call) + '\\n')",
        ]
        program.write_text("\n".join(lines) + "\n")
        program.chmod(0o755)
    return tmp_path


def calls_of(script: str, stand_ins: Path) -> list[tuple[str, list[str], str | None]]:
    """The programs that a script starts, with their arguments and the file of settings in their environment."""
    subprocess.run(
        ["bash", str(ROOT / script), "some/model", "--tp-size", "2"],
        env={"PATH": f"{stand_ins}{os.pathsep}{os.environ['PATH']}"},
        cwd=stand_ins,
        timeout=PROGRAM_S,
        check=True,
    )
    return [tuple(json.loads(line)) for line in (stand_ins / "calls").read_text().splitlines()]


def documented(page: str, options: list[str]) -> list[str]:
    """Those of the options that a page of the docs does not name."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [option for option in options if option.startswith("--") and option not in text]


def test_the_script_for_sglang_starts_it_with_settings_that_the_backend_takes(stand_ins: Path) -> None:
    install, serve = calls_of("examples/serve/sglang.sh", stand_ins)
    assert install[1] == ["-m", "pip", "install", f"{ROOT}[sglang,replay]"]
    program, arguments, settings = serve
    assert (program, arguments[:4]) == ("python", ["-m", "sglang.launch_server", "--model-path", "some/model"])
    assert arguments[arguments.index("--radix-cache-backend") + 1] == "unified_tree"
    assert arguments[-2:] == ["--tp-size", "2"]
    assert documented("docs/sglang.md", arguments) == []
    assert settings is not None
    read = SglangSettings.read({VARIABLE: settings})
    assert read.store is not None and {"--enable-hierarchical-cache", "--hicache-storage-backend"} <= set(arguments)
    assert read.host is not None and read.allow_unproven_gpu, "what a host tier on a GPU needs"


def test_the_script_for_vllm_starts_it_with_settings_that_the_connector_takes(stand_ins: Path) -> None:
    install, serve = calls_of("examples/serve/vllm.sh", stand_ins)
    assert install[1] == ["-m", "pip", "install", f"vllm=={TESTED_VERSIONS[-1]}", f"{ROOT}[vllm,replay]"]
    program, arguments, _ = serve
    assert (program, arguments[:2]) == ("vllm", ["serve", "some/model"])
    assert arguments[-2:] == ["--tp-size", "2"]
    assert documented("docs/vllm.md", arguments[:-2]) == []
    transfer = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])
    module = transfer["kv_connector_module_path"].removeprefix("unified_tree.").replace(".", "/")
    assert f"class {transfer['kv_connector']}(" in (ROOT / f"{module}.py").read_text(encoding="utf-8")
    assert transfer["kv_role"] == "kv_both"
    read = ConnectorSettings.of(transfer["kv_connector_extra_config"])
    assert read.store is not None and read.inspector is not None


def test_the_list_names_files_that_exist() -> None:
    page = (ROOT / "examples/README.md").read_text()
    for target in page.split("](")[1:]:
        assert (ROOT / "examples" / target.partition(")")[0]).exists()
