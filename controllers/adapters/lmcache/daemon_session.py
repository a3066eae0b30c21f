"""What one life of a daemon knows of this process: a connection, and the pools registered under a number of their own.

A daemon takes a number that it knows for the memory it knows; and what was sent to one that has ended may reach the one that
takes its place. So every session has a new number, and nothing of an old one can write to the pools.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.adapters.lmcache.block_groups import block_groups
from unified_tree.controllers.adapters.lmcache.client_context import client_context
from unified_tree.controllers.adapters.lmcache.group_probe import check_object_groups
from unified_tree.controllers.adapters.lmcache.lmcache_package import lmcache_module
from unified_tree.controllers.adapters.lmcache.lmcache_settings import LmcacheSettings
from unified_tree.controllers.prefix_linker.linked_pool import LinkedPool, check_windows, format_digest
from unified_tree.terms.errors import ConfigurationError, LinkError

if TYPE_CHECKING:
    from unified_tree.controllers.prefix_linker.prefix_linker import Span


class DaemonSession:
    """Registered with the daemon, or not made at all.

    Attributes:
        settings: as they were given.
        client: the daemon's calls; each gives a future.
        pools: the device pools.
        chunk_tokens: the daemon's.
        losses: of the watch, when this session began.

    Raises ConfigurationError without the package, for a chunk that fits the pages or a window badly, for a daemon that does
    not keep windows and states apart, and for CPU pools that it cannot map; LinkError where the daemon does not answer.
    """

    def __init__(self, settings: LmcacheSettings, pools: Sequence[LinkedPool], losses: int) -> None:
        self.losses = losses
        self.settings = settings
        self.pools = pools
        self._model = f"{settings.model}-{format_digest(pools)}"
        self._key = lmcache_module("lmcache.v1.multiprocess.custom_types").IPCCacheServerKey
        self._windows = [pool for pool in pools if not pool.coverage.is_path]
        self._tensors = {f"{pool.name}.{index}": tensor for pool in pools for index, tensor in enumerate(pool.tensors)}
        linger_ms = round(1000 * settings.answer_timeout_s)  # without it one that nobody answers is never closed
        context = client_context(lmcache_module("zmq"), linger_ms)
        factory = lmcache_module("lmcache.v1.multiprocess.transport.factory").RequestClientFactory
        self.client = factory.create(f"tcp://{settings.daemon}", context=context)
        try:
            self.chunk_tokens = self._asked_chunk()
            check_windows(pools, self.chunk_tokens)
            self._groups = block_groups(pools, self.chunk_tokens)
            transfer = lmcache_module("lmcache.v1.multiprocess.transfer_context").LMCacheDrivenTransferContext
            self._transfer = transfer(secrets.randbits(62), self.client)
            self.register()
            if self._windows:
                check_object_groups(self)
        except BaseException:
            self.client.close()
            raise

    def register(self) -> None:
        """Make the pools known to the daemon, again if it has forgotten them. Raises as the constructor. Blocks."""
        addresses = [tensor.data_ptr() for tensor in self._tensors.values()]
        try:
            self._transfer.register(
                self._tensors,
                self._model,
                1,
                self.chunk_tokens // self.pools[0].page_tokens,
                self.settings.answer_timeout_s,
                layout_hints={"kv_layout": "NHD"},
                engine_group_infos=[group.info for group in self._groups],
            )
        except TimeoutError as error:
            raise no_answer(self.settings) from error
        if addresses != [tensor.data_ptr() for tensor in self._tensors.values()]:
            raise ConfigurationError(
                "lmcache: the daemon cannot map the device pools: call share_pools on them before anything else uses them"
            )

    def answer(self, future: Any) -> Any:
        """What the daemon answers. Raises LinkError where it does not in time. Blocks."""
        try:
            return future.result(timeout=self.settings.answer_timeout_s)
        except TimeoutError as error:
            raise no_answer(self.settings) from error

    def ping(self) -> bool:
        """Whether the daemon answers in time. Blocks."""
        return bool(self.client.ping(None).wait(timeout=self.settings.answer_timeout_s))

    def key(self, request: str, tokens: tuple[int, ...], salt: str, begin: int, end: int, *, worker: int | None) -> Any:
        """The daemon's key of a range of tokens; for lookups and locks without a worker."""
        return self._key(
            model_name=self._model,
            world_size=1,
            worker_id=worker,
            token_ids=tokens,
            start=begin,
            end=end,
            request_id=request,
            cache_salt=salt,
            num_kv_readers=1,
        )

    def retrieve(self, request: str, span: Span) -> Any:
        """Begin to fill pages; a future of whether it did."""
        begin = span.first_token(self.chunk_tokens)
        key = self.key(request, _ids(span), span.salt, begin, span.end, worker=0)
        event = self._transfer.create_recorded_event()
        blocks = [group.blocks(span, self.chunk_tokens) for group in self._groups]
        return self._transfer.submit_retrieve(
            request, key, self._tensors, blocks, event, 0, skip_first_n_tokens=span.begin - begin
        )

    def store(self, name: str, span: Span) -> Any:
        """Begin to read pages; a future of whether it did."""
        key = self.key(name, _ids(span), span.salt, span.begin, span.end, worker=0)
        event = self._transfer.create_recorded_event()
        blocks = [group.blocks(span, self.chunk_tokens) for group in self._groups]
        return self._transfer.submit_store(name, key, self._tensors, blocks, event, 0)

    def close(self, *, is_lost: bool) -> None:
        """Make the daemon forget the pools, if it is still there, and close the connection. Blocks."""
        if not is_lost:
            future = self._transfer.unregister()
            if future is not None:
                future.wait(timeout=self.settings.answer_timeout_s)
        self._transfer.close()
        self.client.close()

    def _asked_chunk(self) -> int:
        try:
            chunk_tokens = int(self.client.get_chunk_size().result(timeout=self.settings.answer_timeout_s))
        except TimeoutError as error:
            raise no_answer(self.settings) from error
        page_tokens = self.pools[0].page_tokens
        if chunk_tokens % page_tokens:
            raise ConfigurationError(
                f"lmcache: the daemon's --chunk-size {chunk_tokens} is no multiple of the page size {page_tokens}"
            )
        return chunk_tokens


def no_answer(settings: LmcacheSettings) -> LinkError:
    """The error of a daemon that does not answer in time."""
    return LinkError(
        f"lmcache: no answer from {settings.daemon} within {settings.answer_timeout_s} s: "
        "check `daemon`, and that `lmcache server` runs there"
    )


def _ids(span: Span) -> tuple[int, ...]:
    return tuple(span.tokens.tolist())
