"""Tools for tests: contract checks of every protocol, engines in virtual time, and a store with injected faults.

To test your own storage engine, eviction policy, transfer engine, prefix linker or job runner, call its check. A failure names
each broken clause of the contract, with the expected and the actual result. A clause that has not ended after `limit_s` seconds
(30 by default) is broken, too, and named with where it hangs:

    check_storage_engine(open_engine)     check_policy(factory)     check_transfer_engine(open_engine)
    check_prefix_linker(open_linker)      check_windowed_linker(open_linker)      check_jobs(open_jobs)

Each has a list of its single checks for `pytest.mark.parametrize`, such as `storage_engine_checks()`. Only the checks of prefix
linkers need torch; none needs pytest.

A cache with a host tier needs no torch either. `SimulatedEngine` moves pages in virtual time, from one seed, with your movers
(`Cells`, or any `PageMover`); without movers it only tracks page ids. `FaultyStorage` injects faults into a store.

>>> from unified_tree import Component, Path
>>> from unified_tree.controllers import HostTier, PrefixCache
>>> from unified_tree.controllers.transfer_engines import VirtualClock
>>> cells = Cells(layer_ids=(0, 1), pages=64)
>>> engine = SimulatedEngine(seed=1, clock=VirtualClock(), movers={"full": cells})
>>> full = Component(name="full", coverage=Path())
>>> cache = PrefixCache([full], 2, {"full": 8}, host=HostTier(page_counts={"full": 32}, engine=engine))
>>> cache.close()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.testing.checks import BrokenClauseError, Check, run_checks
from unified_tree.controllers.testing.faulty_storage import FaultyStorage, StorageFaults
from unified_tree.controllers.testing.job_contract import OpenJobs, check_jobs, job_checks
from unified_tree.controllers.testing.policy_contract import LetterTree, check_policy, policy_checks, victims_of
from unified_tree.controllers.testing.simulated_engine import Faults, Latencies, SimulatedEngine, SimulatedJobs
from unified_tree.controllers.testing.storage_contract import (
    OpenEngine,
    StorageRig,
    check_storage_engine,
    storage_engine_checks,
)
from unified_tree.controllers.testing.transfer_contract import OpenTransferEngine, check_transfer_engine, transfer_engine_checks
from unified_tree.controllers.testing.transfer_rig import Cells, Ids, TransferRig

if TYPE_CHECKING:
    from unified_tree.controllers.testing.linked_tensors import LinkedTensors
    from unified_tree.controllers.testing.linker_contract import (
        LinkerRig,
        OpenLinker,
        check_prefix_linker,
        prefix_linker_checks,
    )
    from unified_tree.controllers.testing.windowed_linker_contract import (
        CASES,
        WindowedRig,
        check_windowed_linker,
        windowed_linker_checks,
    )

__all__ = [
    "BrokenClauseError",
    "Cells",
    "Check",
    "Faults",
    "FaultyStorage",
    "Ids",
    "Latencies",
    "LetterTree",
    "OpenEngine",
    "OpenJobs",
    "OpenTransferEngine",
    "SimulatedEngine",
    "SimulatedJobs",
    "StorageFaults",
    "StorageRig",
    "TransferRig",
    "check_jobs",
    "check_policy",
    "check_storage_engine",
    "check_transfer_engine",
    "job_checks",
    "policy_checks",
    "run_checks",
    "storage_engine_checks",
    "transfer_engine_checks",
    "victims_of",
]
if TYPE_CHECKING:
    __all__ += [
        "CASES",
        "LinkedTensors",
        "LinkerRig",
        "OpenLinker",
        "WindowedRig",
        "check_prefix_linker",
        "check_windowed_linker",
        "prefix_linker_checks",
        "windowed_linker_checks",
    ]  # not without extras: a star import would fail

_TENSORS = {
    "CASES": "windowed_linker_contract",
    "LinkedTensors": "linked_tensors",
    "LinkerRig": "linker_contract",
    "OpenLinker": "linker_contract",
    "WindowedRig": "windowed_linker_contract",
    "check_prefix_linker": "linker_contract",
    "check_windowed_linker": "windowed_linker_contract",
    "prefix_linker_checks": "linker_contract",
    "windowed_linker_checks": "windowed_linker_contract",
}
"""Names whose modules import torch, loaded when first asked for."""


def __getattr__(name: str) -> Any:
    if name not in _TENSORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_TENSORS[name]}"), name)
