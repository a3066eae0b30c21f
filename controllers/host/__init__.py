"""The host tier: host memory behind the device, with backups and load backs.

Start at `HostTier`, the settings that `PrefixCache(host=...)` takes. `LoadCost` decides between loading and computing.
"""

from unified_tree.controllers.host.host_tier import HostTier, LoadCost, WritePolicy

__all__ = ["HostTier", "LoadCost", "WritePolicy"]
